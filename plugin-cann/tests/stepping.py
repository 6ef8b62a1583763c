"""For programs on a simulated chip: a model whose steps are driven one by one, and the figures
that the chip gives of itself."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import umbel_cann
from umbel import gguf
from umbel.gguf.types import F16, F32, DType
from umbel.loading import targets
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel.tools.gguf_file import encode, header, padding
from umbel_cann.runtime import PROCESS


def open_model(
    path: str | Path, dtype: str = "auto", debug: str = "off", **settings: Any
) -> Runner:
    file = gguf.open(path)  # the process is short: it stays open
    found = architecture(file.get("general.architecture", str))
    options = {"cann": {"dtype": dtype, "timeout": "20", "debug": debug}}
    given = Settings(**{"ctx": 64, "parallel": 4} | settings)
    chosen = targets("cann:0", options, None, False)
    return Runner(ModelDefinition(file, found, OPS), chosen, given)


def talk(runner: Runner, steps: int, others: int = 0) -> np.ndarray:
    """The logits of so many decode steps, of several sequences in each: what a step gives is
    the next one's input."""
    sequences = [Sequence() for _ in range(1 + others)]
    ids = [int(runner.forward(s, [1, 5 + i, 9])[0].argmax()) for i, s in enumerate(sequences)]
    told = []
    for _ in range(steps):
        told.append(logits := runner.decode(sequences, ids))
        ids = logits.argmax(axis=1).tolist()
    for s in sequences:
        runner.cache.close(s)
    return np.stack(told)


def counters() -> dict[str, float]:
    """What the simulator has counted, and the seconds that its clock says it was busy."""
    ask = ctypes.CDLL(None).umbel_simulator_counters
    text = ctypes.create_string_buffer(1 << 16)
    ask(text, ctypes.c_size_t(len(text)))
    told = json.loads(text.value)
    return {**told["counters"], "busy": told["busy"]}


def fault(text: str) -> None:
    ctypes.CDLL(None).umbel_simulator_fault(text.encode())


def programs() -> Any:
    return umbel_cann._open["cann:0"].programs


def recorded() -> int:
    return int(programs().counts()["recorded"])


def count_calls() -> dict[str, int]:
    """From here on, how often each function of the libraries is called."""
    counts: dict[str, int] = {}
    acl = PROCESS.acl
    assert acl is not None
    for program in programs().made.values():
        program._kept = ()  # they hold functions that are not counted
        program.drop(programs().npu)
    for name, function in list(acl._functions.items()):
        if function is not None:
            acl._functions[name] = _counted(counts, name, function)
    return counts


def _counted(counts: dict[str, int], name: str, function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        counts[name] = counts.get(name, 0) + 1
        return function(*arguments)

    return call


def write_qwen2(path: str | Path, *, layers: int, weights: DType = F16) -> None:
    """A model of qwen2's shape, but narrow; its values are random."""
    wide, inner, heads, kv, words = 128, 256, 8, 2, 64
    rng = np.random.default_rng(0)
    some: dict[str, tuple[tuple[int, ...], DType]] = {
        "token_embd.weight": ((words, wide), weights)
    }
    for p in (f"blk.{i}." for i in range(layers)):
        for name, out in (("q", wide), ("k", kv * 16), ("v", kv * 16)):
            some[f"{p}attn_{name}.weight"] = (out, wide), weights
            some[f"{p}attn_{name}.bias"] = (out,), F32
        for name, shape in (
            ("gate", (inner, wide)),
            ("up", (inner, wide)),
            ("down", (wide, inner)),
        ):
            some[f"{p}ffn_{name}.weight"] = shape, weights
        some[f"{p}attn_output.weight"] = (wide, wide), weights
        some |= {f"{p}{name}_norm.weight": ((wide,), F32) for name in ("attn", "ffn")}
    some["output_norm.weight"] = (wide,), F32
    named = {"block_count": layers, "context_length": 512, "embedding_length": wide}
    named |= {"feed_forward_length": inner, "attention.head_count": heads}
    named |= {"attention.head_count_kv": kv}
    keys: dict[str, Any] = {"general.architecture": "qwen2"}
    keys |= {f"qwen2.{key}": value for key, value in named.items()}
    keys |= {"qwen2.attention.layer_norm_rms_epsilon": 1e-6, "qwen2.rope.freq_base": 1e6}
    keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(words)]
    entries = [(name, shape, dtype) for name, (shape, dtype) in some.items()]
    with open(path, "wb") as out:
        out.write(header({k: encode(v) for k, v in keys.items()}, entries, 32))
        for _, shape, dtype in entries:
            values = rng.standard_normal(shape) / np.sqrt(shape[-1])
            raw = np.ascontiguousarray(values, dtype.numpy).tobytes()
            out.write(raw + padding(len(raw), 32))
