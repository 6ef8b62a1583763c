"""For programs on a simulated chip: a model whose steps are driven one by one, and the figures
that the chip gives of itself."""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import umbel_cann
from umbel import gguf
from umbel.errors import UnsupportedModelError
from umbel.gguf.types import F16, F32, DType, quantise
from umbel.loading import targets
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel.tools.gguf_file import encode, header, padding
from umbel.tools.gguf_file import size as gguf_size
from umbel_cann.runtime import PROCESS
from umbel_kit.conformance.inputs import random_blocks


def open_model(
    path: str | Path,
    dtype: str = "auto",
    debug: str = "off",
    device: str = "cann:0",
    **settings: Any,
) -> Runner:
    file = gguf.open(path)  # the process is short: it stays open
    found = architecture(file.get("general.architecture", str))
    options = {"cann": {"dtype": dtype, "timeout": "20", "debug": debug}}
    given = Settings(**{"ctx": 64, "parallel": 4} | settings)
    chosen = targets(device, options, None, False)
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
    """What the simulator has counted; the seconds that its clock says it was busy, and the
    bytes that operators and copies read and wrote in that time."""
    ask = ctypes.CDLL(None).umbel_simulator_counters
    text = ctypes.create_string_buffer(1 << 16)
    ask(text, ctypes.c_size_t(len(text)))
    told = json.loads(text.value)
    moved = sum(stream["bytes"] for stream in told["streams"])
    return {**told["counters"], "busy": told["busy"], "bytes": moved}


def fault(text: str) -> None:
    ctypes.CDLL(None).umbel_simulator_fault(text.encode())


def programs() -> Any:
    return umbel_cann._open["cann:0"].programs


def capture(able: bool) -> None:
    """From here on the chip can record launches, or not."""
    programs().chip = attrs.evolve(programs().chip, capture=able)


def blocks(able: bool) -> None:
    """From here on attention takes a table of blocks, or not."""
    programs().chip = attrs.evolve(programs().chip, blocks=able)
    programs()._cells.clear()


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


@attrs.frozen
class Size:
    """Of a model of qwen2's shape, or with experts of qwen3moe's."""

    layers: int
    wide: int = 128
    inner: int = 256
    heads: int = 8
    kv: int = 2
    words: int = 64
    experts: int = 0
    used: int = 0


Types = Callable[[str], DType]  # in what dtype a file has a weight, by its name
Values = Callable[[tuple[int, ...], DType, np.random.Generator], bytes]


def write_qwen2(
    path: str | Path, *, layers: int = 0, weights: DType | Types = F16, size: Size | None = None
) -> None:
    """A model of qwen2's shape, by default a narrow one; its values are random."""
    blocks: dict[DType, bytes] = {}  # some of each type, again and again: others take minutes

    def values(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> bytes:
        if not dtype.quantised:
            return normal(shape, dtype, rng)
        some = blocks.get(dtype) or random_blocks((64, dtype.block), dtype, rng).tobytes()
        blocks[dtype] = some
        nbytes = gguf_size(shape, dtype)
        return (some * (nbytes // len(some) + 1))[:nbytes]

    _write(path, "qwen2", size or Size(layers), weights, values)


def write_qwen3moe(path: str | Path, size: Size, weights: DType | Types) -> None:
    """A mixture of experts of qwen3moe's shape, with weights as large as those of models."""
    _write(path, "qwen3moe", size, weights, normal)


def normal(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> bytes:
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    return np.ascontiguousarray(encoded(dtype, values)).tobytes()


def encoded(dtype: DType, values: np.ndarray) -> np.ndarray:
    """float32 values as a file has them, in any type."""
    if dtype.numpy is not None:
        return values.astype(dtype.numpy)
    try:
        return quantise(values, dtype)
    except UnsupportedModelError:
        library = importlib.import_module("libgguf")
        rows = values.reshape(-1, values.shape[-1])
        raw = np.asarray(library.quantize_rows(rows, dtype.number))
        return raw.reshape(*values.shape[:-1], -1)


def _write(
    path: str | Path, kind: str, size: Size, weights: DType | Types, values: Values
) -> None:
    types = (lambda _: weights) if isinstance(weights, DType) else weights
    rng = np.random.default_rng(0)
    entries = [(n, s, F32 if len(s) == 1 else types(n)) for n, s in _shapes(size)]
    with open(path, "wb") as out:
        known = {k: encode(v) for k, v in _metadata(kind, size).items()}
        out.write(header(known, entries, 32))
        for _, shape, dtype in entries:
            raw = values(shape, dtype, rng)
            out.write(raw + padding(len(raw), 32))


def _shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    wide, inner = size.wide, size.inner
    narrow = wide // size.heads * size.kv
    yield "token_embd.weight", (size.words, wide)
    for p in (f"blk.{i}." for i in range(size.layers)):
        for name, out in (("q", wide), ("k", narrow), ("v", narrow)):
            yield f"{p}attn_{name}.weight", (out, wide)
            if not size.experts:
                yield f"{p}attn_{name}.bias", (out,)
        yield from _experts(p, size) if size.experts else _plain(p, wide, inner)
        yield f"{p}attn_output.weight", (wide, wide)
        yield from ((f"{p}{name}_norm.weight", (wide,)) for name in ("attn", "ffn"))
    yield "output_norm.weight", (wide,)


def _plain(p: str, wide: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{p}ffn_gate.weight", (inner, wide)
    yield f"{p}ffn_up.weight", (inner, wide)
    yield f"{p}ffn_down.weight", (wide, inner)


def _experts(p: str, size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{p}ffn_gate_inp.weight", (size.experts, size.wide)
    for name, shape in _plain(p, size.wide, size.inner):
        yield name.replace(".weight", "_exps.weight"), (size.experts, *shape)
    for name in "qk":
        yield f"{p}attn_{name}_norm.weight", (size.wide // size.heads,)


def _metadata(kind: str, size: Size) -> dict[str, Any]:
    named = {"block_count": size.layers, "context_length": 4096, "embedding_length": size.wide}
    named |= {"feed_forward_length": size.inner, "attention.head_count": size.heads}
    named |= {"attention.head_count_kv": size.kv}
    if size.experts:
        named |= {"expert_count": size.experts, "expert_used_count": size.used}
    keys: dict[str, Any] = {"general.architecture": kind}
    keys |= {f"{kind}.{key}": value for key, value in named.items()}
    keys |= {f"{kind}.attention.layer_norm_rms_epsilon": 1e-6, f"{kind}.rope.freq_base": 1e6}
    keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(size.words)]
    return keys
