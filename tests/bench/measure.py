"""Takes the samples: starts the engines, lets them take turns, and buries those that die."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs
from figures import Placements, Sample
from machine import Machine, Watch
from rows import Facts, Row, Work

WORKERS = Path(__file__).with_name("workers.py")
OURS, THEIRS = "umbel", "llama.cpp"
WEIGHTS = ("extra", "plain", "repack")  # llama.cpp's; `workers.py` says what they are
Variants: TypeAlias = "Sequence[tuple[bool, ...]]"
FLASH: Variants = ((True,), (False,))  # and with flash attention or without
NONE = "none"  # in the place of our device: llama.cpp alone
SLOW = 2  # times the best: such a setting is not tried twice
LIMIT = 900  # seconds for one answer
ATTEMPTS = 3  # at most so many samples are taken for each that is wanted


class Died(Exception):
    """How a worker ended, or what it refused."""


def ending(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


@attrs.frozen
class Engine:
    """One engine as it is to run: which Python has it, its device or its kind of weights."""

    python: str
    name: str
    setting: str


class Asked(Protocol):
    """Who answers calls with seconds: `variants` are the arguments that may be added."""

    @property
    def engine(self) -> Engine: ...

    @property
    def variants(self) -> Variants: ...

    @property
    def pid(self) -> int: ...

    def ask(self, call: str, *args: Any) -> Any: ...


class Worker:
    """The other end of `workers.py`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.variants: Variants = FLASH if engine.name == THEIRS else ((),)
        self._process = subprocess.Popen(
            [engine.python, WORKERS, engine.name, engine.setting],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([call, *args]), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], LIMIT)[0]:
            self._process.kill()
            msg = f"gave no answer in {LIMIT} s"
            raise Died(msg)
        line = self._process.stdout.readline()
        if not line:
            raise Died(ending(self._process.wait()))
        told = json.loads(line)
        if "error" in told:
            raise Died(" ".join(told["error"].split())[:200])
        return told["answer"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@attrs.frozen(eq=False)
class Command:
    """A whole process to the first token; of llama.cpp's the start of Python does not count."""

    engine: Engine
    facts: Facts
    threads: int
    variants: Variants = ((),)

    @property
    def pid(self) -> int:
        return os.getpid()  # which hears of the time of its children

    def ask(self, call: str, *args: Any) -> float:
        python, setting, path = self.engine.python, self.engine.setting, str(self.facts.path)
        if self.engine.name == OURS:
            command = [python, "-m", "umbel", "run", path, "Hello", "-n", "1", "--temp", "0"]
            command += ["--threads", str(self.threads), "--device", setting]
        else:
            command = [python, str(WORKERS), "first", setting, path, str(self.threads)]
            command += self.facts.repacked
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise Died(ending(done.returncode))
        return seconds if self.engine.name == OURS else float(done.stderr.splitlines()[-1])


@attrs.frozen(eq=False)
class Choice:
    """Somebody with the arguments of one work."""

    asked: Asked
    args: tuple[Any, ...]
    flash: tuple[bool, ...]

    @property
    def setting(self) -> str:
        flash = [f"{'' if on else 'no '}flash attention" for on in self.flash]
        return ", ".join([self.asked.engine.setting, *flash])

    def run(self, work: Work) -> float:
        return float(self.asked.ask(work.call, *self.args, *self.flash))


def _by_time(seconds: dict[Choice, float]) -> list[Choice]:
    return sorted(seconds, key=lambda choice: seconds[choice])


@attrs.frozen
class Measured:
    """All samples of one work."""

    name: str
    work: Work
    facts: Facts
    threads: int
    samples: list[Sample]
    setting: str  # of the rival


@attrs.frozen(kw_only=True)
class Bench:
    """How everything is measured."""

    machine: Machine
    device: str
    llama_cpp: str | None  # the Python that has it
    samples: int
    foreign: float  # load of others that is borne
    patience: float = 0.0  # seconds that are waited for less of it
    died: Counter[str] = attrs.field(factory=Counter)
    versions: dict[str, str] = attrs.field(factory=dict)

    def engines(self, facts: Facts) -> Iterator[Engine]:
        """All that are wanted, ours first."""
        if self.device != NONE:
            yield Engine(sys.executable, OURS, self.device)
        for weights in WEIGHTS if self.llama_cpp else ():
            if facts.repacked or weights != "repack":
                yield Engine(str(self.llama_cpp), THEIRS, weights)

    @contextlib.contextmanager
    def workers(self, row: Row, facts: Facts, threads: int) -> Iterator[list[Asked]]:
        """Those that could load the file, ours first."""
        with contextlib.ExitStack() as stack:
            able: list[Asked] = []
            for engine in self.engines(facts):
                worker = stack.enter_context(contextlib.closing(Worker(engine)))
                if self.load(worker, row, facts, threads):
                    able.append(worker)
            yield able

    def load(self, worker: Worker, row: Row, facts: Facts, threads: int) -> bool:
        room = row.ctx, row.parallel
        try:
            version = worker.ask("load", str(facts.path), threads, *room, facts.repacked)
        except Died as error:
            self.bury(worker, error)
            return False
        self.versions[worker.engine.name] = version
        return True

    def bury(self, asked: Asked, error: Died) -> None:
        self.died[f"{asked.engine.name}, {asked.engine.setting}: {error}"] += 1

    def measure(self, row: Row, facts: Facts, threads: int) -> Iterator[Measured]:
        """Each work of a row, one after the other."""
        busy = self.machine.spinning() if row.busy else contextlib.nullcontext()
        with self.workers(row, facts, threads) as workers, busy:
            for work in row.works:
                yield self.compare(row, work, facts, threads, workers)

    def commands(self, row: Row, facts: Facts, threads: int) -> Measured:
        """The same of a command."""
        some: list[Asked] = [Command(e, facts, threads) for e in self.engines(facts)]
        return self.compare(row, row.works[0], facts, threads, some)

    def compare(
        self, row: Row, work: Work, facts: Facts, threads: int, asked: list[Asked]
    ) -> Measured:
        chosen = list(self.choose(asked, work))
        settings = {c.asked.engine.name: c.setting for c in chosen}
        try:
            samples = list(self.sample(chosen, work))
        except Died as error:  # after it has been warmed up: nothing can be compared
            self.died[f"{row.name} {work.name}: {error}"] += 1
            samples = []
        name = f"{row.name} {work.name}"
        return Measured(name, work, facts, threads, samples, settings.get(THEIRS, "-"))

    def choose(self, asked: list[Asked], work: Work) -> Iterator[Choice]:
        """Who takes part, warmed up: ours, and the fastest of llama.cpp's settings.

        All run once, then once more but for what is far behind.
        """
        seconds: dict[Choice, float] = {}
        choices = [Choice(one, work.args, flash) for one in asked for flash in one.variants]
        for _ in range(2):
            fastest = {c.asked.engine.name: seconds[c] for c in _by_time(seconds)[::-1]}
            for choice in choices:
                worst = SLOW * fastest.get(choice.asked.engine.name, math.inf)
                if choice.asked not in asked or seconds.get(choice, 0) > worst:
                    continue
                self.machine.settle(self.foreign, self.patience)
                try:
                    with self.machine.disturbed():
                        took = choice.run(work)
                except Died as error:
                    self.bury(choice.asked, error)
                    asked.remove(choice.asked)
                else:
                    seconds[choice] = min(took, seconds.get(choice, math.inf))
        able = [choice for choice in _by_time(seconds) if choice.asked in asked]
        for name in (OURS, THEIRS):
            yield from [c for c in able if c.asked.engine.name == name][:1]

    def sample(self, chosen: list[Choice], work: Work) -> Iterator[Sample]:
        """In turns, until enough of all count, or too many have been taken."""
        pids = sorted({*self.machine.pids, *(c.asked.pid for c in chosen)})
        counting = 0
        for turn in range(self.samples * ATTEMPTS if chosen else 0):
            counts = []
            for choice in chosen if turn % 2 else chosen[::-1]:
                self.machine.settle(self.foreign, self.patience)
                before, watch = self.machine.probe(), Watch(pids)
                with self.machine.disturbed():
                    seconds = choice.run(work)
                foreign, after = watch.foreign(), self.machine.probe()
                engine = choice.asked.engine.name
                taken = Sample(engine, turn, seconds, before, after, foreign)
                judged = Placements.find(self.machine.seen).judge(taken, self.foreign)
                counts.append(not isinstance(judged, str))
                yield taken
            counting += all(counts)
            if counting == self.samples:
                return

    # what is no speed

    def python_share(self, row: Row, facts: Facts, threads: int) -> float | None:
        """The part of decoding that is spent outside of our backend's hooks."""
        alone = attrs.evolve(self, llama_cpp=None)
        with alone.workers(row, facts, threads) as workers:
            if not workers:
                return None
            (ours,), work = workers, row.works[0]
            shares = list[float]()
            for _ in range(1 + self.samples):
                seconds = ours.ask(work.call, *work.args)
                shares.append(1 - ours.ask("inside") / seconds)
            return statistics.median(shares[1:])

    def memory(self, row: Row, facts: Facts, threads: int) -> dict[str, int]:
        """Bytes at the peak, less what there was before the model, less the KV cache."""
        found, work = dict[str, int](), row.works[0]
        for engine in self.engines(facts):
            with contextlib.closing(Worker(engine)) as worker:
                try:
                    worker.ask("start")
                    idle = worker.ask("peak_memory")
                    if not self.load(worker, row, facts, threads):
                        continue
                    worker.ask(work.call, *work.args, *worker.variants[0])
                    peak = worker.ask("peak_memory")
                except Died as error:
                    self.bury(worker, error)
                    continue
            name = f"{engine.name} ({engine.setting})"
            found[name] = peak - idle - facts.kv * row.ctx
        return found
