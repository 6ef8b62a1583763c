"""Hyper-parameters: from config.json to the metadata keys that `umbel.models` reads.

What a model may ask for and is not there (an activation, a window in some layers) is refused.
One function for each architecture; keys come without the architecture's prefix.
"""

import logging
import math
from typing import Any

from umbel.tools.convert.folder import Config
from umbel.tools.convert.rope import rope_keys, rope_of

log = logging.getLogger("umbel.convert")

Keys = dict[str, Any]
SILU = ("silu", "swish")
FULL, SLIDING = "full_attention", "sliding_attention"


def llama(c: Config) -> Keys:
    """Llama, and Mistral without a window shorter than its context."""
    c.only("hidden_act", *SILU)
    window = c.count("sliding_window", 0)
    if window and window < c.count("max_position_embeddings"):
        c.only("sliding_window")
    theta = () if c.values.get("model_type") == "mixtral" else (10000.0,)  # before it was a key
    return _decoder(c, *theta)


def mixtral(c: Config) -> Keys:
    keys = {"expert_count": c.count("num_local_experts")}
    return {**llama(c), **keys, "expert_used_count": c.count("num_experts_per_tok")}


def qwen(c: Config) -> Keys:
    """Qwen 2 and 3."""
    c.only("hidden_act", *SILU)
    c.only("use_sliding_window", False)
    return _decoder(c)


def qwen3moe(c: Config) -> Keys:
    c.only("decoder_sparse_step", 1)
    c.only("mlp_only_layers", [])
    count = c.values.get("num_experts", c.values.get("num_local_experts"))
    return {
        **qwen(c),
        "expert_count": Config({"num_experts": count}, c.where).count("num_experts"),
        "expert_used_count": c.count("num_experts_per_tok"),
        "expert_feed_forward_length": c.count("moe_intermediate_size"),
        "expert_weights_norm": c.get("norm_topk_prob", bool, False),
    }


def gemma3(c: Config) -> Keys:
    c.only("hidden_activation", "gelu_pytorch_tanh")
    c.only("attn_logit_softcapping")
    c.only("use_bidirectional_attention", False)
    if "hidden_activation" not in c.values:
        c.only("hidden_act", "gelu_pytorch_tanh")
    keys = {**_decoder(c), **_windows(c, 6), "attention.scale": _scale(c)}
    if cap := c.real("final_logit_softcapping", 0.0):
        keys["final_logit_softcapping"] = cap
    return keys


def phi3(c: Config) -> Keys:
    c.only("hidden_act", *SILU)
    # where the key is missing, some readers take a window of their own
    return {**_decoder(c), "attention.sliding_window": c.count("sliding_window", 0)}


def olmo2(c: Config) -> Keys:
    """OLMo 2, and 3 with its windows."""
    c.only("hidden_act", *SILU)
    c.only("clip_qkv")
    windows = _windows(c, 4) if c.values.get("model_type") == "olmo3" else {}
    return {**_decoder(c), **windows}


def granite(c: Config) -> Keys:
    c.only("hidden_act", *SILU)
    return {
        **_decoder(c),
        "attention.scale": c.real("attention_multiplier", 1.0),
        "embedding_scale": c.real("embedding_multiplier", 1.0),
        "residual_scale": c.real("residual_multiplier", 1.0),
        "logit_scale": c.real("logits_scaling", 1.0),
    }


def lfm2(c: Config) -> Keys:
    n = c.count("num_hidden_layers")
    attends = {i for i in c.get("full_attn_idxs", list, range(n)) if isinstance(i, int)}
    default = [FULL if i in attends else "conv" for i in range(n)]
    kinds = _layer_types(c, default, FULL, "conv")
    width = c.count("block_ff_dim", c.count("intermediate_size", 0))
    if c.get("block_auto_adjust_ff_dim", bool, True):
        width = int(c.real("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        unit = max(1, c.count("block_multiple_of", 256))
        width = -(-width // unit) * unit
    heads = c.count("num_key_value_heads")
    return {
        **_decoder(c, eps="norm_eps", feed_forward=width),
        "attention.head_count_kv": [heads if kind == FULL else 0 for kind in kinds],
        "shortconv.l_cache": c.count("conv_L_cache"),
    }


def gpt2(c: Config) -> Keys:
    c.only("activation_function", "gelu_new", "gelu_pytorch_tanh")
    c.only("scale_attn_weights", True)
    c.only("scale_attn_by_inverse_layer_idx", False)
    c.only("add_cross_attention", False)
    width = c.count("n_embd")
    return {
        "block_count": c.count("n_layer"),
        "context_length": c.count("n_positions"),
        "embedding_length": width,
        "feed_forward_length": c.count("n_inner", 4 * width),
        "attention.head_count": c.count("n_head"),
        "attention.layer_norm_epsilon": c.real("layer_norm_epsilon"),
    }


def bert(c: Config) -> Keys:
    c.only("hidden_act", "gelu")
    c.only("position_embedding_type", "absolute")
    c.only("is_decoder", False)
    c.only("add_cross_attention", False)
    return {
        "block_count": c.count("num_hidden_layers"),
        "context_length": c.count("max_position_embeddings"),
        "embedding_length": c.count("hidden_size"),
        "feed_forward_length": c.count("intermediate_size"),
        "attention.head_count": c.count("num_attention_heads"),
        "attention.layer_norm_epsilon": c.real("layer_norm_eps"),
        "attention.causal": False,
    }


def mamba(c: Config) -> Keys:
    """Mamba, and Falcon Mamba with its norms."""
    normed = c.values.get("model_type") == "falcon_mamba"
    eps, inner = c.real("layer_norm_epsilon"), c.real("mixer_rms_eps", 1e-6)
    if normed and eps != inner:
        log.warning("%s: mixer_rms_eps is %g, and GGUF has only %g", c.where, inner, eps)
    width, rank = c.count("hidden_size"), c.values.get("time_step_rank")
    return {
        **_state_space(c, c.count("intermediate_size", _expanded(c))),
        "ssm.time_step_rank": -(-width // 16) if rank == "auto" else c.count("time_step_rank"),
        "ssm.dt_b_c_rms": normed,
    }


def mamba2(c: Config) -> Keys:
    limit = c.get("time_step_limit", list, [0.0, math.inf])
    if [str(v).lower() for v in limit] not in (["0.0", "inf"], ["0.0", _INFINITY]):
        c.only("time_step_limit", [0.0, math.inf])
    heads = c.count("num_heads")
    return {
        **_state_space(c, heads * c.count("head_dim")),
        "ssm.time_step_rank": heads,
        "ssm.group_count": c.count("n_groups"),
    }


_INFINITY = "{'__float__': 'infinity'}"  # how transformers 5 writes it


def head_dim(c: Config) -> int:
    """Of the attention's heads, which need not divide the width."""
    heads = c.count("num_attention_heads")
    return c.count("head_dim", c.count("hidden_size") // max(heads, 1))


def _decoder(
    c: Config, *theta: float, eps: str = "rms_norm_eps", feed_forward: int | None = None
) -> Keys:
    """What all decoders with rotary attention have."""
    heads, size = c.count("num_attention_heads"), head_dim(c)
    width = c.count("intermediate_size") if feed_forward is None else feed_forward
    return {
        "block_count": c.count("num_hidden_layers"),
        "context_length": c.count("max_position_embeddings"),
        "embedding_length": c.count("hidden_size"),
        "feed_forward_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": c.count("num_key_value_heads", heads),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": c.real(eps),
        **rope_keys(c, rope_of(c, FULL, *theta), size),
    }


def _windows(c: Config, period: int) -> Keys:
    """Which layers see a sliding window, and the frequency base of these."""
    n = c.count("num_hidden_layers")
    usual = [(i + 1) % period > 0 for i in range(n)]
    period = c.count("sliding_window_pattern", c.count("_sliding_window_pattern", period))
    default = [SLIDING if (i + 1) % max(period, 1) else FULL for i in range(n)]
    windowed = [kind == SLIDING for kind in _layer_types(c, default, FULL, SLIDING)]
    local = rope_of(c, SLIDING)
    local.only("rope_type", "default")
    keys: Keys = {"attention.sliding_window": c.count("sliding_window")}
    keys["rope.freq_base_swa"] = local.positive("rope_theta")
    # Some readers know the usual pattern only, and do not expect the key.
    return keys if windowed == usual else {**keys, "attention.sliding_window_pattern": windowed}


def _layer_types(c: Config, default: list[str], *known: str) -> list[str]:
    kinds: list[str] = c.get("layer_types", list, default)
    if len(kinds) != len(default) or any(kind not in known for kind in kinds):
        expected = f"{' or '.join(known)}, once for each of {len(default)} layers"
        c.refuse("layer_types", expected, kinds)
    return kinds


def _scale(c: Config) -> float:
    return float(c.positive("query_pre_attn_scalar", head_dim(c)) ** -0.5)


def _expanded(c: Config) -> int:
    return int(c.real("expand", 2.0) * c.count("hidden_size"))


def _state_space(c: Config, inner: int) -> Keys:
    """What both generations of Mamba have."""
    c.only("hidden_act", *SILU)
    return {
        "block_count": c.count("num_hidden_layers"),
        "context_length": 1 << 20,  # there are no positions, so no end
        "embedding_length": c.count("hidden_size"),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": c.real("layer_norm_epsilon"),
        "ssm.conv_kernel": c.count("conv_kernel"),
        "ssm.inner_size": inner,
        "ssm.state_size": c.count("state_size"),
    }
