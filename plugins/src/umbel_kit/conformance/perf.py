"""What `--umbel-perf` times: operations in the sizes of a model of a billion weights.

The median of several calls of `graph_compute` and `sync`, after calls in which the device may
compile; nothing is read back. GB/s count what a call reads and writes, each once, as it is
stored there; GFLOP/s the products.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator

import attrs
from umbel.graph import Role
from umbel.plan import Target

from umbel_kit.cases import Arg, Case, Shape
from umbel_kit.device import Call, Subject

WARM_UP = 2  # calls
LEAST, MOST = 5, 200  # calls that are timed
ENOUGH = 0.2  # seconds of them
_OUT, _IN, _HEADS, _KV, _HEAD, _CELLS = 4096, 2048, 32, 8, 64, 1024
WEIGHTS = ("f32", "f16", "q4_0", "q8_0", "q4_k")
STEPS = {"decode": 1, "prefill": 128}


@attrs.frozen
class Timed:
    """A case by a name that is easy to read; `flop` where that is what a device is good at."""

    title: str
    case: Case
    flop: int = 0
    bound: bool = True  # by memory, unless by `flop`

    def __str__(self) -> str:
        return self.title

    def row(self, call: Call, seconds: float) -> str:
        """The line of the terminal's summary."""
        rate = ""
        if self.flop:
            rate = f"{self.flop / seconds / 1e9:10.2f} GFLOP/s"
        elif self.bound:
            storages = {t.storage for t in (*call.node.inputs, call.node)}
            rate = f"{sum(t.nbytes for t in storages) / seconds / 1e9:10.2f} GB/s"
        return f"{self.title:48}{seconds * 1e6:12.1f} us{rate}".rstrip()


def timed_cases() -> Iterator[Timed]:
    for how, n in STEPS.items():
        for dtype in WEIGHTS:
            weight, x = Arg((_OUT, _IN), dtype, Role.WEIGHT), Arg((n, _IN))
            flop = 2 * n * _OUT * _IN if n > 1 else 0
            title = f"mul_mat {dtype} {_OUT}x{_IN}, {how} of {n}"
            yield Timed(title, Case("mul_mat", (weight, x)), flop)
        yield from _activations(how, n)
        yield _attention(how, n)
        yield _scan(how, n)


def _activations(how: str, n: int) -> Iterator[Timed]:
    rope = {"n_dims": _HEAD, "mode": "neox", "freq_base": 10000.0, "freq_scale": 1.0}
    mask = Arg((1, 1, n, _CELLS), values="mask")
    scores, weight = (1, _HEADS, n, _CELLS), Arg((_IN,), "f32", Role.WEIGHT)
    heads, last = (n, _HEADS, _HEAD), Arg((n,), "i32", values=f"last below {_CELLS}")
    wide = Arg((n, 4 * _IN))
    shaped: tuple[tuple[Case, Shape], ...] = (
        (Case("rms_norm", (Arg((n, _IN)), weight), {"eps": 1e-5}), (n, _IN)),
        (Case("norm", (Arg((n, _IN)), weight, weight), {"eps": 1e-5}), (n, _IN)),
        (Case("rope", (Arg(heads), last), rope), heads),
        (Case("soft_max", (Arg(scores), mask)), scores),
        (Case("swiglu", (wide, wide)), wide.shape),
    )
    for case, shape in shaped:
        yield Timed(f"{case.op} {'x'.join(map(str, shape))}, {how}", case)


def _attention(how: str, n: int) -> Timed:
    q, k = Arg((1, n, _HEADS, _HEAD)), Arg((1, n, _KV, _HEAD))
    cache = Arg((_CELLS, _KV * _HEAD), "f16", Role.STATE)
    cells, table = (Arg(s, "i32", values=f"last below {_CELLS}") for s in ((n,), (1, _CELLS)))
    mask = Arg((1, 1, n, _CELLS), values="mask")
    args, attributes = (q, k, k, cache, cache, cells, table, mask), {"scale": _HEAD**-0.5}
    flop = 4 * n * _HEADS * _HEAD * _CELLS if n > 1 else 0
    title = f"kv_attention f16, {_CELLS} cells, {how} of {n}"
    return Timed(title, Case("kv_attention", args, attributes), flop)


def _scan(how: str, n: int) -> Timed:
    heads, size, states = 24, 64, 128
    b, ids = Arg((1, n, 1, states)), Arg((1,), "i32", values="last below 4")
    a = Arg((heads, 1), "f32", Role.WEIGHT, values="negative")
    state = Arg((4, heads, size, states), "f32", Role.STATE)
    x, dt = Arg((1, n, heads, size)), Arg((1, n, heads))
    title = f"ssm_scan {heads}x{size}x{states}, {how} of {n}"
    return Timed(title, Case("ssm_scan", (state, x, dt, a, b, b, ids)), bound=False)


def seconds(call: Call, target: Target) -> float:
    """The median time of a call."""
    subject = Subject(target)
    split = subject.load(call)
    try:
        for _ in range(WARM_UP):
            subject.compute(split)
        times: list[float] = []
        while len(times) < LEAST or (math.fsum(times) < ENOUGH and len(times) < MOST):
            start = time.perf_counter()
            subject.compute(split)
            times.append(time.perf_counter() - start)
    finally:
        target.hooks.forget(target.device, split.uid)
    return statistics.median(times)
