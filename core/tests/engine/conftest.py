"""A runner without a model: it keeps real sequences, counts its steps, and can be held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from umbel import gguf, loading
from umbel.engine import Engine
from umbel.errors import CancelledError
from umbel.generation import Done, Job, Token
from umbel.plugins import Plugins
from umbel.runner import Runner, Settings
from umbel.sampling import Sampler
from umbel.sampling import Settings as Sampling
from umbel.state import Cache, Sequence

N_VOCAB = 32
ORACLES = Path(__file__).parents[1] / "data" / "oracles"


class Text:
    """The part of an output that the engine uses: numbers and a stop number."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.stops = stop, SimpleNamespace(found=None)

    def push(self, token: int) -> str:
        if token == self.stop:
            self.stops.found = str(token)
            return ""
        return f"{token} "

    def flush(self) -> str:
        return ""


class FakeRunner:
    """After token n comes n + 1. `steps` lists the new tokens of each sequence of each step."""

    def __init__(self, ctx: int = 64, parallel: int = 2, cells: int = 0, ubatch: int = 4):
        self.settings = Settings(ctx=ctx, parallel=parallel, ubatch=ubatch)
        self.cache = Cache(1 + (cells or ctx * parallel), 0)
        self.stop, self.asked = self, False  # as of a `Stop`
        self.widest = 1 << 31
        self.steps: list[list[list[int]]] = []
        self.cancels = 0
        self.bad_tokens: set[int] = set()
        self.bad_logits: set[int] = set()
        self._gate: threading.Semaphore | None = None  # where steps wait

    def piece(self, ids: list[int], past: int = 0) -> list[int]:
        return ids[: self.settings.ubatch]

    def forward(self, sequence: Sequence, ids: list[int]) -> np.ndarray:
        return self.step([(sequence, ids)], 1)

    def decode(self, sequences: list[Sequence], ids: list[int]) -> np.ndarray:
        return self.step([(s, [i]) for s, i in zip(sequences, ids, strict=True)], len(ids))

    def step(self, batch: list[tuple[Sequence, list[int]]], rows: int) -> np.ndarray:
        taken = [self.cache.begin(s, len(ids)) for s, ids in batch]
        try:
            self._compute([ids for _, ids in batch])
        except BaseException:
            for places in taken:
                self.cache.abort(places)
            raise
        for (sequence, ids), places in zip(batch, taken, strict=True):
            self.cache.commit(sequence, ids, places)
        last = [i for _, ids in batch for i in (ids[-1:] if rows == len(batch) else ids)]
        logits = np.eye(N_VOCAB, dtype=np.float32)[[(i + 1) % N_VOCAB for i in last]]
        logits[[i in self.bad_logits for i in last]] = np.nan
        return logits

    def _compute(self, ids: list[list[int]]) -> None:
        gate = self._gate
        self.steps.append(ids)
        if gate is not None:
            gate.acquire(timeout=10)
        if self.asked:
            raise CancelledError("the step was cancelled")
        if self.bad_tokens & {i for row in ids for i in row}:
            raise RuntimeError("a bad token")

    def shift(self, sequence: Sequence, keep: int) -> int:
        dropped = (len(sequence) - keep) // 2
        self.cache.drop_span(sequence, keep, keep + dropped)
        return dropped

    def ask(self) -> None:
        self.asked = True
        self.cancels += 1
        self.free()

    def hold(self) -> None:
        """Steps wait, from the next one on."""
        self._gate = threading.Semaphore(0)

    def allow(self, n: int) -> None:
        """So many held steps end, and the next one has begun."""
        wanted = len(self.steps) + n
        assert self._gate is not None
        self._gate.release(n)
        self.wait_for(wanted)

    def wait_for(self, n: int) -> None:
        """Until the n-th step has begun."""
        until = time.monotonic() + 10
        while len(self.steps) < n:
            assert time.monotonic() < until
            time.sleep(0.0005)

    def free(self) -> None:
        """Steps do not wait any more."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release(1000)


def job(prompt: list[int], max_tokens: int = 3, **fields: Any) -> Job:
    """A greedy job on a new sequence."""
    given = {
        "sequence": Sequence(),
        "tokens": [],
        "prompt": prompt,
        "sampler": Sampler(Sampling(temperature=0), N_VOCAB),
        "output": Text(),
        "max_tokens": max_tokens,
    }
    return Job(**given | fields)


def read(job: Job) -> tuple[list[Any], Done]:
    """The events of a job, and its end."""
    events = []
    while not isinstance(event := job.events.get(timeout=10), Done):
        events.append(event)
    return events, event


@pytest.fixture
def new_job() -> Callable[..., Job]:
    return job


@pytest.fixture
def finish() -> Callable[[Job], tuple[list[Any], Done]]:
    return read


@pytest.fixture
def text() -> type[Text]:
    return Text


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Engine, FakeRunner]]]:
    """An engine on a fake runner, closed after the test."""
    engines: list[Engine] = []

    def started(draft: Any = None, **settings: Any) -> tuple[Engine, FakeRunner]:
        runner = FakeRunner(**settings)
        engines.append(Engine(runner, draft))  # type: ignore[arg-type]
        return engines[-1], runner

    yield started
    for engine in engines:
        engine.runner.free()
        engine.close()


@pytest.fixture
def open_runner(monkeypatch):
    """The runner of a model of the oracle folder on the host; most have no vocabulary."""
    monkeypatch.setattr("umbel.plugins._process", Plugins(only=""))
    files = []

    def opened(name, **settings):
        files.append(gguf.open(ORACLES / f"{name}.gguf"))
        devices = loading.targets("host", None, None, strict=True)
        given = {"ctx": 64, "parallel": 2} | settings
        return Runner(loading.define(files[-1]), devices, Settings(**given))

    yield opened
    for file in files:
        file.close()


@pytest.fixture
def ids() -> Callable[[list[Any]], list[int]]:
    """Those of the tokens among some events."""
    return lambda events: [e.id for e in events if isinstance(e, Token)]


@pytest.fixture
def submit_together() -> Callable[[Engine, FakeRunner, list[Job]], None]:
    """All jobs are there before the first step."""

    def submit(engine: Engine, runner: FakeRunner, jobs: list[Job]) -> None:
        runner.hold()
        engine.submit(jobs[0])
        runner.wait_for(1)
        for job in jobs[1:]:
            engine.submit(job)
        runner.free()

    return submit
