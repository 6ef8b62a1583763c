"""A canary: one recorded input is run after each load, and the result compared with the host's.

Much of what goes wrong on this engine goes wrong silently: surfaces bound in another order,
weights that are not those of the file, masks that are ignored, a summed axis of a length that
gives zeros. The input is drawn from a seed that the program's ports determine, so it is the
same on every machine; the host computes in float32 what the program should give.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from umbel.graph import MASKED

from umbel_ane.compiler.ports import Held, OneHot, Port, Whole
from umbel_ane.runtime.feeds import plain_shape

LIMIT = 1e-3  # of the squared error over the squared values, each output by itself
# float16's own rounding gives 1e-7 to 1e-5 through a few layers; what is bound wrong, stale or
# masked differently gives 0.1 and more
SIZE = 0.1  # of values: larger ones make attention choose one token, and which is chance
_LARGEST = float(np.finfo(np.float16).max)


@attrs.frozen
class Verdict:
    """What a canary found of one program."""

    program: str
    passed: bool
    error: float  # the largest of its outputs: squared error over squared values
    output: str = ""  # the port with that error
    worst: str = ""  # its worst value

    def __str__(self) -> str:
        said = "agrees" if self.passed else "does not agree"
        text = f"{self.program} {said} with the host: squared error {self.error:.1e}"
        return f"{text} of {self.output}, {self.worst}" if self.worst else text


def inputs(ports: Sequence[Port]) -> dict[str, np.ndarray]:
    """The recorded input: for each port values of float16, by its name."""
    return {port.name: _values(port) for port in ports}


def _values(port: Port) -> np.ndarray:
    seed = zlib.crc32(f"{port.name} {port.shape}".encode())
    draw, source = np.random.default_rng(seed), port.source
    if isinstance(source, OneHot):
        plain = plain_shape(source)
        rows = np.zeros(plain, np.float16)
        rows[np.arange(plain[0]), draw.integers(0, plain[1], plain[0])] = 1
        made = np.zeros(port.shape, np.float16)
        lines = made.reshape(-1, port.shape[3])  # what is padded is at the end of each
        turned = rows.transpose(source.axes).reshape(len(lines), -1)
        lines[:, : turned.shape[1]] = turned
        return made
    if isinstance(source, Whole) and source.tensor.name.startswith("mask"):
        hidden = draw.random(port.shape) < 0.25
        return np.where(hidden, MASKED, 0).astype(np.float16)
    if isinstance(source, Held):
        made = np.zeros(port.shape, np.float16)
        weight = np.asarray(source.weight.read(), np.float16)
        made[..., : source.shape[3]] = weight.reshape(source.shape)
        return made
    values = draw.standard_normal(port.shape, np.float32)
    return (values * SIZE).astype(np.float16)


def compare(
    program: str, got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
) -> Verdict:
    """Each output with what the host computed; values beyond float16 are not compared."""
    found = [(*_error(got[name], want), name) for name, want in wanted.items()]
    error, worst, name = max(found, key=lambda one: (math.isnan(one[0]), one[0]))
    passed = bool(error <= LIMIT)  # not where it is NaN
    return Verdict(program, passed, error, name, "" if passed else worst)


def _error(got: np.ndarray, want: np.ndarray) -> tuple[float, str]:
    want = want.astype(np.float64)
    fits = np.abs(want) < _LARGEST
    a, b = np.where(fits, got.astype(np.float64), 0), np.where(fits, want, 0)
    with np.errstate(all="ignore"):
        gap = np.abs(a - b)
        error = float(np.square(gap).sum() / max(np.square(b).sum(), 1e-12))
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), want.shape)
    where = [int(i) for i in at]
    return error, f"at {where} {float(a[at]):.6g} where it should be {float(b[at]):.6g}"
