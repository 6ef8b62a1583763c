"""The names of tensors: what they are called in Hugging Face folders and in GGUF files.

One table for each architecture. In the names of a folder `#` stands for the number of a layer
and `*` for that of an expert, whose matrices are joined to one; `.weight` and `.bias` are left
out on both sides, except where one side has no such ending.
"""

from collections.abc import Mapping

Table = Mapping[str, str]


def _layers(prefix: str, blocks: Table, ends: Table) -> dict[str, str]:
    return {
        **ends,
        **{f"{prefix}.#.{theirs}": f"blk.#.{ours}" for theirs, ours in blocks.items()},
    }


_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_PRE_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_QKV = {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"}
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_OUT = {"self_attn.o_proj": "attn_output"}
_ATTENTION = {**_QKV, **_OUT}
_FEED = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}

LLAMA = _layers("model.layers", {**_PRE_NORMS, **_ATTENTION, **_FEED}, _ENDS)
QWEN3 = _layers("model.layers", {**_PRE_NORMS, **_ATTENTION, **_QK_NORMS, **_FEED}, _ENDS)
OLMO2 = _layers("model.layers", {**_POST_NORMS, **_ATTENTION, **_QK_NORMS, **_FEED}, _ENDS)

MIXTRAL = _layers(
    "model.layers",
    {
        **_PRE_NORMS,
        **_ATTENTION,
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
        "block_sparse_moe.experts.*.w2": "ffn_down_exps",
        "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    },
    _ENDS,
)

QWEN3MOE = _layers(
    "model.layers",
    {
        **_PRE_NORMS,
        **_ATTENTION,
        **_QK_NORMS,
        "mlp.gate": "ffn_gate_inp",
        "mlp.experts.*.gate_proj": "ffn_gate_exps",
        "mlp.experts.*.up_proj": "ffn_up_exps",
        "mlp.experts.*.down_proj": "ffn_down_exps",
    },
    _ENDS,
)

GEMMA3 = _layers(
    "model.layers",
    {
        **_ATTENTION,
        **_QK_NORMS,
        **_FEED,
        **_POST_NORMS,
        "input_layernorm": "attn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
    },
    _ENDS,
)

PHI3 = _layers(
    "model.layers",
    {
        **_PRE_NORMS,
        **_OUT,
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
    _ENDS,
)

LFM2 = _layers(
    "model.layers",
    {
        **_QKV,
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "conv.conv": "shortconv.conv",
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w2": "ffn_down",
        "feed_forward.w3": "ffn_up",
    },
    {
        "model.embed_tokens": "token_embd",
        "model.embedding_norm": "token_embd_norm",
        "lm_head": "output",
    },
)

GPT2 = _layers(
    "h",
    {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
)

_MAMBA_ENDS = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
}
_MIXER = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.out_proj": "ssm_out",
}

MAMBA = _layers(
    "backbone.layers",
    {**_MIXER, "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt"},
    _MAMBA_ENDS,
)
MAMBA2 = _layers(
    "backbone.layers",
    {**_MIXER, "mixer.dt_bias": "ssm_dt.bias", "mixer.norm": "ssm_norm"},
    _MAMBA_ENDS,
)

BERT = _layers(
    "encoder.layer",
    {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
    },
)
