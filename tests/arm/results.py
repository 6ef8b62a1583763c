"""What the numa device makes of the cases of the conformance suite and of small models, bit by
bit.

`python results.py FILE` writes inputs and results of all cases that the device takes, and of
larger ones; `python results.py FILE OTHER` takes the inputs from that other file, since drawing
them needs functions that differ between machines. `differences` compares two files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from umbel import gguf, loading, plugins
from umbel.ops import OPS
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel_kit.cases import CASES, WEIGHTS, Arg, Case
from umbel_kit.conformance.inputs import weight
from umbel_kit.device import Call, Subject, prepare, refusal

# more tokens and blocks than any tile takes at once
MANY = [Case("mul_mat", (weight((37, 1024), dtype), Arg((123, 1024)))) for dtype in WEIGHTS]
ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"
TEXT = 150  # tokens: more cells than a chunk of attention has
PRECISE: dict[str, Any] = {"options": {"numa": {"precise": True}}}
OTHERWISE = ({"kv": "f32"}, {"kv": "q8_0"}, PRECISE)
SEVERAL = ("llama", "llama-e256-Q4_K", "llama-e256-Q8_0", "phi3")  # run otherwise, too


def write(path: Path, inputs: Path | None = None) -> None:
    """For each case its inputs, its result and its states; results of each model."""
    threads = 3 if inputs else 1  # another number on each side, which changes no bit
    found = plugins.get()
    target = found.open(found.find("numa"), {"numa": {"threads": threads}})
    given = dict(np.load(inputs)) if inputs else None
    entries: dict[str, Any] = {}
    for number, case in enumerate((*CASES, *MANY)):
        name, call = f"{number} {case}", prepare(case, target, OPS)
        if refusal(call, target) is not None:
            continue
        if given is not None:
            call = _with_inputs(call, name, given)
        value, states = Subject(target).run(call)
        for i, array in enumerate((value, *states.values())):
            entries[f"{name}|{i}"] = array
        if given is None:
            entries |= _inputs(call, name)
    for file, settings in models():
        found.close()  # what a device was opened with stays
        entries[f"{file.stem} {settings}"] = _text(file, threads=threads, **settings)
    np.savez(path, **entries)


def models() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files, each of them once, and some in other ways."""
    for file in sorted(ORACLES.glob("*.gguf")):
        if not file.stem.endswith("-lora"):
            yield file, {}
            yield from ((file, how) for how in OTHERWISE if file.stem in SEVERAL)


def _text(file: Path, threads: int, options: Any = None, **settings: Any) -> np.ndarray:
    """The logits of a prompt, and of tokens after it one by one; of an encoder its states."""
    with gguf.open(file) as opened:
        definition = loading.define(opened)
        devices = loading.targets("numa", options, threads, strict=False)
        ctx = loading.context(definition, TEXT, devices)
        ids = np.random.default_rng(5).integers(3, definition.hparams.n_vocab, ctx).tolist()
        runner = Runner(definition, devices, Settings(ctx=ctx, **settings))
        parts, sequence = (ids[:-3], *([token] for token in ids[-3:])), Sequence()
        if runner.encodes:
            made = runner.hidden([ids])
        else:
            made = [runner.forward(sequence, part, every=True) for part in parts]
        runner.close()
        return np.concatenate(made)


def _inputs(call: Call, name: str) -> dict[str, np.ndarray]:
    arrays = (*call.arrays.values(), *(array for _, array in call.sources.values()))
    return {f"{name}|input {i}": array for i, array in enumerate(arrays)}


def _with_inputs(call: Call, name: str, given: Mapping[str, np.ndarray]) -> Call:
    arrays = iter([given[key] for key in _inputs(call, name)])
    leaves = {t: next(arrays) for t in call.arrays}
    sources = {t: (source, next(arrays)) for t, (source, _) in call.sources.items()}
    return attrs.evolve(call, arrays=leaves, sources=sources)


def differences(one: Path, other: Path) -> dict[str, str]:
    """The cases whose results differ, and where. Which of the NaN is the processor's affair."""
    found = {}
    with np.load(one) as a, np.load(other) as b:
        names = [{name for name in f.files if "|input" not in name} for f in (a, b)]
        assert len(names[0]) > len(CASES) // 2, "the device took next to no case"
        for name in sorted(names[0] ^ names[1]):
            found[name] = "only on one side"
        for name in sorted(names[0] & names[1]):
            x, y = _plain(a[name]), _plain(b[name])
            if wrong := int((x != y).any(axis=1).sum()):
                found[name] = f"{wrong} of {len(x)} values"
    return found


def _plain(x: np.ndarray) -> np.ndarray:
    """(values, bytes), of floats with one NaN for all."""
    if x.dtype.kind == "f":
        x = np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x)
    return np.frombuffer(x.tobytes(), np.uint8).reshape(x.size, x.itemsize)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
