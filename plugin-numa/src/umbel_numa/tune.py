"""Which numbers of threads a model is fastest with, here: short runs, coarse and then fine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from umbel_numa import measure

if TYPE_CHECKING:
    import umbel

    from umbel_numa.engine import Engine

_MARGIN = 1.02  # how much faster more threads have to be


@attrs.frozen
class Trial:
    threads: int
    s_pp: float  # tokens per second
    s_tg: float


@attrs.frozen
class Result:
    trials: tuple[Trial, ...]  # by threads
    decode: int
    prefill: int


def tune(
    model: umbel.Model, engine: Engine, pp: int, tg: int, told: Callable[[Trial], None]
) -> Result:
    """Tries numbers of threads; the engine has the best ones afterwards."""
    found: dict[int, Trial] = {}

    def attempt(threads: int) -> None:
        if threads in found:
            return
        model.engine.call(lambda: engine.set_counts(threads, threads))
        speed = measure.best(model, pp, tg, runs=2)
        found[threads] = Trial(threads, speed.s_pp, speed.s_tg)
        told(found[threads])

    least, most = len(engine.placement.numbers), len(engine.placement.cpus)
    for threads in coarse(least, most):
        attempt(threads)
    for of in (decode_of, prefill_of):
        for threads in near(best(list(found.values()), of), list(found)):
            attempt(threads)
    trials = tuple(found[n] for n in sorted(found))
    decode, prefill = best(trials, decode_of), best(trials, prefill_of)
    model.engine.call(lambda: engine.set_counts(decode, prefill))
    return Result(trials, decode, prefill)


def decode_of(trial: Trial) -> float:
    return trial.s_tg


def prefill_of(trial: Trial) -> float:
    return trial.s_pp


def coarse(least: int, most: int) -> Iterator[int]:
    """All of few; of many the quarters between the powers of two."""
    n = least
    while n < most:
        yield n
        n += 1 << max(n.bit_length() - 3, 0)
    yield most


def near(centre: int, tried: list[int]) -> list[int]:
    """Numbers halfway between one that was tried and its neighbours."""
    below = max((n for n in tried if n < centre), default=centre)
    above = min((n for n in tried if n > centre), default=centre)
    halves = {(below + centre) // 2, (centre + above + 1) // 2}
    return sorted(halves - {below, centre, above})


def best(trials: list[Trial] | tuple[Trial, ...], of: Callable[[Trial], float]) -> int:
    """The fastest; of nearly equal ones that with the fewest threads, which leaves the others
    to somebody else."""
    most = max(map(of, trials))
    return min(t.threads for t in trials if of(t) * _MARGIN >= most)
