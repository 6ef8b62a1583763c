"""What the numa device makes of the cases of the conformance suite, bit by bit.

`python results.py FILE` writes inputs and results of all cases that the device takes, and of
larger ones; `python results.py FILE OTHER` takes the inputs from that other file, since drawing
them needs functions that differ between machines. `differences` compares two files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from umbel import plugins
from umbel.ops import OPS
from umbel_kit.cases import CASES, WEIGHTS, Arg, Case
from umbel_kit.conformance.inputs import weight
from umbel_kit.device import Call, Subject, prepare, refusal

# more tokens and blocks than any tile takes at once
MANY = [Case("mul_mat", (weight((37, 1024), dtype), Arg((123, 1024)))) for dtype in WEIGHTS]


def write(path: Path, inputs: Path | None = None) -> None:
    """For each case its inputs, its result and its states."""
    found = plugins.get()
    target = found.open(found.find("numa"), {})
    given = dict(np.load(inputs)) if inputs else None
    entries: dict[str, Any] = {}
    for case in (*CASES, *MANY):
        call = prepare(case, target, OPS)
        if refusal(call, target) is not None:
            continue
        if given is not None:
            call = _with_inputs(call, given)
        try:
            value, states = Subject(target).run(call)
        except AssertionError:  # the suite itself says what is wrong
            continue
        for i, array in enumerate((value, *states.values())):
            entries[f"{case}|{i}"] = array
        if given is None:
            entries |= _inputs(call)
    np.savez(path, **entries)


def _inputs(call: Call) -> dict[str, np.ndarray]:
    arrays = (*call.arrays.values(), *(array for _, array in call.sources.values()))
    return {f"{call.case}|input {i}": array for i, array in enumerate(arrays)}


def _with_inputs(call: Call, given: Mapping[str, np.ndarray]) -> Call:
    arrays = iter([given.get(name, array) for name, array in _inputs(call).items()])
    leaves = {t: next(arrays) for t in call.arrays}
    sources = {t: (source, next(arrays)) for t, (source, _) in call.sources.items()}
    return attrs.evolve(call, arrays=leaves, sources=sources)


def differences(one: Path, other: Path) -> dict[str, str]:
    """The cases whose results differ, and where. Which of the NaN is the processor's affair."""
    found = {}
    with np.load(one) as a, np.load(other) as b:
        names = [{name for name in f.files if "|input" not in name} for f in (a, b)]
        assert names[0], "the device took no case"
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
