"""Speeds of a loaded model, as llama-batched-bench counts; where the time of a step goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from umbel.state import Sequence

if TYPE_CHECKING:
    import umbel

    from umbel_numa.engine import Engine
    from umbel_numa.program import Program

_PRODUCTS = ("linear", "prepare", "mul_mat", "mul_mat_id", "mul_mat_dense")
_ATTENTION = ("kv_attention", "kv_merge", "kv_store", "flash_attn_ext")
FAMILIES = dict.fromkeys(_PRODUCTS, "products") | dict.fromkeys(_ATTENTION, "attention")


@attrs.frozen
class Speed:
    """`b` sequences read `pp` tokens each, and then write `tg` tokens together."""

    pp: int
    tg: int
    b: int
    read: float  # seconds
    written: float

    @property
    def s_pp(self) -> float:
        """Tokens per second."""
        return self.b * self.pp / max(self.read, 1e-9)

    @property
    def s_tg(self) -> float:
        return self.b * self.tg / max(self.written, 1e-9)

    @property
    def s(self) -> float:
        return self.b * (self.pp + self.tg) / max(self.read + self.written, 1e-9)


def speed(model: umbel.Model, pp: int, tg: int, b: int = 1) -> Speed:
    """Of one run with random tokens; the first of a shape also compiles."""
    runner = model.runner
    n_vocab = runner.definition.hparams.n_vocab
    tokens = np.random.default_rng(0).integers(0, n_vocab, max(pp, tg)).tolist()
    sequences = [Sequence() for _ in range(b)]

    def work() -> Speed:
        begin = time.perf_counter()
        for sequence in sequences if pp else ():
            runner.forward(sequence, tokens[:pp])
        read = time.perf_counter()
        for token in tokens[:tg]:
            runner.decode(sequences, [token] * b)
        written = time.perf_counter()
        for sequence in sequences:
            runner.cache.close(sequence)
        return Speed(pp, tg, b, read - begin, written - read)

    return model.engine.call(work)


def best(model: umbel.Model, pp: int, tg: int, b: int = 1, runs: int = 3) -> Speed:
    """The fastest of some runs after one to warm up, reading and writing each by itself."""
    found = [speed(model, pp, tg, b) for _ in range(runs + 1)][1:]
    read, written = min(s.read for s in found), min(s.written for s in found)
    return attrs.evolve(found[0], read=read, written=written)


@attrs.frozen
class Times:
    """Where the first thread's time went: shares of the whole."""

    barriers: float
    products: float
    attention: float
    other: float


def times(engine: Engine, work: Callable[[], Any]) -> tuple[Times, Program | None]:
    """Of the steps that `work` runs, and the program that took most of it."""
    before = {p: p.times().copy() for p in engine.programs.values()}
    work()
    spent: Counter[str] = Counter()
    longest: Counter[Program] = Counter()
    for program, old in before.items():
        if not program.handle:  # forgotten meanwhile: plans are many where contexts grow
            continue
        new = program.times() - old
        longest[program] = int(new.sum())
        spent["barriers"] += int(new[:, 1].sum())
        for name, ns in zip(program.names, new[:, 0], strict=True):
            spent[FAMILIES.get(name, "other")] += int(ns)
    total = max(sum(spent.values()), 1)
    shares = {field.name: spent[field.name] / total for field in attrs.fields(Times)}
    most = max(longest, key=longest.__getitem__, default=None)
    return Times(**shares), most
