"""Tiny models with random weights, one for each architecture.

Which tensors a model has, and of what shape, is asked of the architecture itself: its graph is
built with a builder that makes up each tensor as it is named. So an architecture that a plugin
brings needs no more than its metadata here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from umbel.adapters import linears
from umbel.gguf.header import TensorInfo
from umbel.gguf.types import F32
from umbel.graph import Operation, Shape, Tensor
from umbel.models import Architecture, ModelDefinition, StateShape, StepShape
from umbel.models.builder import ModelBuilder

N_EMBD, N_VOCAB, N_LAYER = 64, 288, 2
_SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16}
_NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}
KEYS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"attention.head_count_kv": 4, "attention.causal": False},
    "gemma3": {"attention.sliding_window": 8, "attention.key_length": 16},
    "gpt2": {"attention.head_count_kv": 4},
    "granite": {"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 2.0},
    "lfm2": {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
    "llama": {},
    "mamba": {**_NO_HEADS, **_SSM, "ssm.time_step_rank": 4},
    "mamba2": {**_NO_HEADS, **_SSM, "ssm.time_step_rank": 8, "ssm.group_count": 2},
    "olmo2": {},
    "phi3": {"attention.sliding_window": 12},
    "qwen2": {},
    "qwen3": {"attention.key_length": 32, "attention.value_length": 32},
    "qwen3moe": {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32},
}
# The tensors that an architecture can do without, and which these models have.
_HAS = {
    "bert": r"position_embd\.weight|.*\.bias",
    "gpt2": r"position_embd\.weight|blk\.\d+\.attn_qkv\.weight|.*\.bias",
    "mamba": r"output\.weight|.*(ssm_conv1d|ssm_dt)\.bias",
    "mamba2": r"output\.weight|.*ssm_conv1d\.bias",
    "phi3": r"output\.weight|blk\.\d+\.attn_qkv\.weight",
    "qwen2": r".*ffn_gate\.weight|.*attn_[qkv]\.bias",
    "gemma3": r".*ffn_gate\.weight",
}
# A selective scan is of the fourth degree in what these give: were it larger, the rounding of
# float16 alone would cost a token here and there a hundred times what it costs the others.
_INTO_SCAN = ("ssm_in.weight", "ssm_conv1d.weight")
_USUAL = r".*ffn_gate\.weight|output\.weight"
# Float32 in every file: small, or what decides (the routers of experts).
_EXACT = re.compile(r".*(norm|ffn_gate_inp|ssm_conv1d|shortconv\.conv)\.weight|.*ssm_a")


class _Wishes(dict[str, TensorInfo]):
    """Tensors that exist once they have been named; of the optional ones those in `pattern`."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern)

    def __contains__(self, name: object) -> bool:
        return self._pattern.fullmatch(str(name)) is not None or super().__contains__(name)

    def __len__(self) -> int:
        return 1 << 16  # as many as will be named


class _Asking(ModelBuilder):
    def weight(self, stem: str, shape: Shape, suffix: str = ".weight") -> Tensor:
        name = stem + suffix
        self.file.tensors[name] = TensorInfo(name, shape, F32, 0, 0)
        return super().weight(stem, shape, suffix)


def keys_of(arch: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """All metadata of such a model."""
    keys: dict[str, Any] = {
        "context_length": 256,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
    }
    keys |= {**KEYS.get(arch, {}), **more}
    pieces = [f"<0x{b:02X}>" for b in range(256)] + [chr(97 + i) for i in range(26)]
    tokens = ["<unk>", "<s>", "</s>", *pieces, "\u2581", "\u2581a", "\u2581th"][:N_VOCAB]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    spare = N_VOCAB - len(tokens)
    return {
        "general.architecture": arch,
        **{f"{arch}.{name}": value for name, value in keys.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + [f"<spare {i}>" for i in range(spare)],
        "tokenizer.ggml.scores": [-float(i) for i in range(N_VOCAB)],
        "tokenizer.ggml.token_type": kinds + [5] * spare,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_model(
    path: Path,
    architecture: Architecture,
    ops: Mapping[str, Operation],
    *,
    has: str | None = None,
    dtype: str = "f32",
    **more: Any,
) -> Path:
    """Writes a model of that architecture; matrices in `dtype`, which `gguf` must encode.

    `more` are metadata keys without the architecture's prefix, dots written as `__`; `has` is a
    pattern of the optional tensors that it is to have.
    """
    arch = architecture.name
    keys = keys_of(arch, {name.replace("__", "."): value for name, value in more.items()})
    wishes = _Wishes(_HAS.get(arch, _USUAL) if has is None else has)
    wishes["token_embd.weight"] = TensorInfo("token_embd.weight", (N_VOCAB, N_EMBD), F32, 0, 0)
    file = _File(path, keys, wishes)
    model = ModelDefinition(file, architecture, ops)  # type: ignore[arg-type]
    step = StepShape(2, 1, 2 if architecture.pooled else 256, 1)
    architecture.build(_Asking(model, step, StateShape(8, 4)))
    rng = np.random.default_rng(11)
    tensors = {name: _values(name, info.shape, rng) for name, info in wishes.items()}
    _write(path, keys, tensors, dtype)
    return path


def write_adapter(path: Path, definition: ModelDefinition, rank: int) -> Path:
    """Writes a LoRA adapter of random factors for all linear layers of a model."""
    arch, rng = definition.architecture.name, np.random.default_rng(rank)
    keys = {"general.architecture": arch, "general.type": "adapter", "adapter.type": "lora"}
    tensors: dict[str, np.ndarray] = {}
    for stem, (n_out, n_in) in linears(definition).items():
        a, b = rng.standard_normal((rank, n_in)), rng.standard_normal((n_out, rank))
        tensors[f"{stem}.weight.lora_a"] = (a / n_in**0.5).astype(np.float32)
        tensors[f"{stem}.weight.lora_b"] = (0.1 * b).astype(np.float32)
    _write(path, keys, tensors, "f32")
    return path


class _File(SimpleNamespace):
    """What an architecture reads of a file."""

    def __init__(self, path: Path, metadata: dict[str, Any], tensors: _Wishes) -> None:
        super().__init__(path=path, metadata=metadata, tensors=tensors)

    def get(self, key: str, kind: type, *default: Any) -> Any:
        return kind(self.metadata[key]) if key in self.metadata or not default else default[0]


def _values(name: str, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Random weights of a size that keeps activations moderate through the layers."""
    values = rng.standard_normal(shape)
    if name.endswith("ssm_a"):  # decays
        values = -np.exp(values)
    elif len(shape) == 1 or name.endswith("ssm_norm.weight"):
        values = 0.1 * values + name.endswith("norm.weight")
    elif "embd" not in name:
        spread = 0.9 if name.endswith(_INTO_SCAN) else 1.5
        values = spread / shape[-1] ** 0.5 * values
    return values.astype(np.float32)


def _write(
    path: Path, keys: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str
) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, keys["general.architecture"])
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        if key != "general.architecture":
            add[type(value)](key, value)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for name, values in tensors.items():
        whole = values.ndim > 1 and values.shape[-1] % block == 0
        if whole and not _EXACT.fullmatch(name):
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
