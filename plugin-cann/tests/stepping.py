"""For programs on a simulated chip: a model whose steps are driven one by one, and the figures
that the chip gives of itself."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
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
from umbel.tools.gguf_file import size as gguf_size
from umbel_cann.runtime import PROCESS
from umbel_kit.conformance.inputs import random_blocks


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
    """Of a model of qwen2's shape."""

    layers: int
    wide: int = 128
    inner: int = 256
    heads: int = 8
    kv: int = 2
    words: int = 64


Types = Callable[[str], DType]  # in what dtype a file has a weight, by its name


def write_qwen2(
    path: str | Path, *, layers: int = 0, weights: DType | Types = F16, size: Size | None = None
) -> None:
    """A model of qwen2's shape, by default a narrow one; its values are random."""
    size = size or Size(layers)
    kind = (lambda _: weights) if isinstance(weights, DType) else weights
    rng = np.random.default_rng(0)
    blocks: dict[DType, bytes] = {}  # some of each type, again and again: others take minutes
    entries = [
        (name, shape, F32 if len(shape) == 1 else kind(name)) for name, shape in _shapes(size)
    ]
    with open(path, "wb") as out:
        out.write(header({k: encode(v) for k, v in _metadata(size).items()}, entries, 32))
        for _, shape, dtype in entries:
            if dtype.quantised:
                some = (
                    blocks.get(dtype) or random_blocks((64, dtype.block), dtype, rng).tobytes()
                )
                blocks[dtype] = some
                nbytes = gguf_size(shape, dtype)
                raw = (some * (nbytes // len(some) + 1))[:nbytes]
            else:
                values = rng.standard_normal(shape) / np.sqrt(shape[-1])
                raw = np.ascontiguousarray(values, dtype.numpy).tobytes()
            out.write(raw + padding(len(raw), 32))


def _shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    wide, inner = size.wide, size.inner
    narrow = wide // size.heads * size.kv
    yield "token_embd.weight", (size.words, wide)
    for p in (f"blk.{i}." for i in range(size.layers)):
        for name, out in (("q", wide), ("k", narrow), ("v", narrow)):
            yield f"{p}attn_{name}.weight", (out, wide)
            yield f"{p}attn_{name}.bias", (out,)
        yield f"{p}ffn_gate.weight", (inner, wide)
        yield f"{p}ffn_up.weight", (inner, wide)
        yield f"{p}ffn_down.weight", (wide, inner)
        yield f"{p}attn_output.weight", (wide, wide)
        yield from ((f"{p}{name}_norm.weight", (wide,)) for name in ("attn", "ffn"))
    yield "output_norm.weight", (wide,)


def _metadata(size: Size) -> dict[str, Any]:
    named = {"block_count": size.layers, "context_length": 4096, "embedding_length": size.wide}
    named |= {"feed_forward_length": size.inner, "attention.head_count": size.heads}
    named |= {"attention.head_count_kv": size.kv}
    keys: dict[str, Any] = {"general.architecture": "qwen2"}
    keys |= {f"qwen2.{key}": value for key, value in named.items()}
    keys |= {"qwen2.attention.layer_norm_rms_epsilon": 1e-6, "qwen2.rope.freq_base": 1e6}
    keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(size.words)]
    return keys
