"""Tiny models of transformers, one for each way in which a folder may differ.

`python tests/convert/cases.py` writes what the tests of the core keep of them: config.json,
the names and shapes of the tensors as `save_pretrained` writes them, and results. The values of
the tensors follow from their names.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

TESTS = Path(__file__).parents[2] / "core/tests"
DATA = TESTS / "data/convert"

ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **ENDS,
}
STATE_SPACE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
STATE_SPACE |= ENDS
ENCODER = {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}
GPT2 = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, **ENDS}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 32}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}


def rope(**how: Any) -> dict[str, Any]:
    return {"rope_parameters": {**PLAIN, **how}}


# The name of a case: the class, the beginning of its configuration's, what is special.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "Llama", DECODER),
    "llama-bias-tied": (
        "LlamaForCausalLM",
        "Llama",
        {
            **DECODER,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama-llama3": ("LlamaForCausalLM", "Llama", {**DECODER, **rope(**LLAMA3)}),
    "llama-linear": (
        "LlamaForCausalLM",
        "Llama",
        {**DECODER, **rope(rope_type="linear", factor=4.0)},
    ),
    "mistral": ("MistralForCausalLM", "Mistral", {**DECODER, "sliding_window": None}),
    "mixtral": (
        "MixtralForCausalLM",
        "Mixtral",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2", DECODER),
    "qwen2-yarn-tied": (
        "Qwen2ForCausalLM",
        "Qwen2",
        {**DECODER, **rope(**YARN), "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3", {**DECODER, "head_dim": 16}),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3Moe", {**DECODER, **EXPERTS, "num_experts": 11}),
    "qwen3moe-norm": (
        "Qwen3MoeForCausalLM",
        "Qwen3Moe",
        {**DECODER, **EXPERTS, "num_experts": 6, "norm_topk_prob": True},
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2", GPT2),
    "gpt2-untied": (
        "GPT2LMHeadModel",
        "GPT2",
        {**GPT2, "n_inner": 40, "tie_word_embeddings": False},
    ),
    "mamba": ("MambaForCausalLM", "Mamba", STATE_SPACE),
    "mamba-bias-untied": (
        "MambaForCausalLM",
        "Mamba",
        {
            **STATE_SPACE,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    "falcon-mamba": (
        "FalconMambaForCausalLM",
        "FalconMamba",
        {**STATE_SPACE, "mixer_rms_eps": 1e-5},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2",
        {**STATE_SPACE, "head_dim": 16, "num_heads": 4, "n_groups": 2},
    ),
    "bert": ("BertModel", "Bert", ENCODER),
    "bert-masked": ("BertForMaskedLM", "Bert", ENCODER),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3Text",
        {
            **DECODER,
            "num_hidden_layers": 7,
            "head_dim": 8,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": PLAIN,
            },
        },
    ),
    "gemma3-capped": (
        "Gemma3ForCausalLM",
        "Gemma3Text",
        {
            **DECODER,
            "head_dim": 16,
            "sliding_window": 6,
            "final_logit_softcapping": 5.0,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3", DECODER),
    "phi3-window-partial": (
        "Phi3ForCausalLM",
        "Phi3",
        {**DECODER, "sliding_window": 6, **rope(partial_rotary_factor=0.5)},
    ),
    "phi3-longrope": (
        "Phi3ForCausalLM",
        "Phi3",
        {
            **DECODER,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 32,
            **rope(**LONGROPE),
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2", DECODER),
    "olmo3": (
        "Olmo3ForCausalLM",
        "Olmo3",
        {
            **DECODER,
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "rope_parameters": {
                "full_attention": {**PLAIN, **YARN},
                "sliding_attention": PLAIN,
            },
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        "Granite",
        {
            **DECODER,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 0.3,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2",
        {**DECODER, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    "lfm2-bias-untied": (
        "Lfm2ForCausalLM",
        "Lfm2",
        {
            **DECODER,
            "layer_types": ["full_attention", "conv"],
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
}


def build(case: str) -> Any:
    """The model of a case with random weights, large enough for results that differ."""
    name, config, values = CASES[case]
    torch.manual_seed(0)
    made = getattr(transformers, f"{config}Config")(**values)
    return getattr(transformers, name)(made).eval()


def run(model: Any, ids: np.ndarray) -> np.ndarray:
    """Its logits; of an encoder the hidden states."""
    with torch.no_grad():
        found = model(torch.tensor(ids[None]), output_hidden_states=True)
    encodes = model.config.model_type == "bert"
    return (found.hidden_states[-1] if encodes else found.logits)[0].numpy()


def token_ids(case: str) -> np.ndarray:
    """The text of a case; LongRoPE's is longer than the model was first trained for."""
    n = 48 if case == "phi3-longrope" else 24
    return np.random.RandomState(7).randint(2, 64, n)


def main() -> None:
    """Writes the files that the tests of the core read."""
    weights = run_path(str(TESTS / "tools/convert/conftest.py"))["weights"]
    stored: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            build(case).save_pretrained(folder)
            config = json.loads(Path(folder, "config.json").read_text())
            with safe_open(Path(folder, "model.safetensors"), "np") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in [*file.keys()]}
            values = {name: torch.tensor(v) for name, v in weights(shapes).items()}
            save_file(values, Path(folder, "model.safetensors"), {"format": "pt"})
            loaded = getattr(transformers, CASES[case][0]).from_pretrained(folder).eval()
            ids = token_ids(case)
            rows = np.arange(2, len(ids), 3)
            arrays |= {
                f"{case}.ids": ids.astype(np.int32),
                f"{case}.rows": rows.astype(np.int32),
            }
            arrays[f"{case}.ref"] = run(loaded, ids)[rows]
        stored[case] = {"config": config, "tensors": shapes}
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in stored.items())
    (DATA / "cases.json").write_text(f"{{\n{lines}\n}}\n")
    np.savez_compressed(DATA / "cases.npz", **arrays)


if __name__ == "__main__":
    main()
