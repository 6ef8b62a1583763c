"""Continuous batching: sequences join and leave between steps, on a thread of the engine's own.

Every caller hands in jobs and reads events; only the engine's thread touches the runner.
Between two steps of decoding one piece of one prompt is prefilled, so that a long prompt holds
nobody up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import attrs
import numpy as np

from umbel.errors import CancelledError, ContextFullError, UmbelError
from umbel.runner import Runner
from umbel.sampling import Sampler
from umbel.state import Mark, Sequence

T = TypeVar("T")


@attrs.frozen
class Token:
    """One sampled token; `logprobs` are (id, log probability) of the best ones and of it."""

    id: int
    logprobs: tuple[tuple[int, float], ...] = ()


@attrs.frozen
class Shifted:
    """The context was full: so many tokens after the first `keep` were dropped."""

    dropped: int
    keep: int


@attrs.frozen
class Done:
    """The end: "stop" (an end-of-text token), "length", "cancelled" or "error"."""

    reason: str
    error: BaseException | None = None


Event = Token | Shifted | Done


@attrs.define(eq=False)
class Job:
    """One request: prefill `prompt` after `sequence`, then sample up to `max_tokens`."""

    sequence: Sequence
    prompt: list[int]
    sampler: Sampler
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    keep: int = -1  # tokens kept in front when the context is shifted; -1: end instead
    logprobs: int = 0
    done: Callable[[Job], None] = lambda job: None  # called on the engine's thread
    events: SimpleQueue[Event] = attrs.field(factory=SimpleQueue)
    sampled: int = 0
    last: int | None = None  # sampled, not yet computed
    cancelled: bool = False
    logits: np.ndarray | None = None  # after the prompt, when no token is wanted
    _pieces: Iterator[list[int]] | None = None
    _mark: Mark | None = None


class Engine:
    """Runs jobs on one model. The thread starts with the first of them."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._decoding: list[Job] = []
        self._running: Job | None = None  # whose prompt the current step computes
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._closed = False

    # from any thread

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, job: Job) -> None:
        """Queues the job; its events end with `Done`."""
        self._post(lambda: self._waiting.append(job))

    def cancel(self, job: Job) -> None:
        """Ends the job soon; what was sampled so far stays."""
        job.cancelled = True
        if self._running is job:
            self.runner.cancel()
        self._post(lambda: None)

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` between two steps and gives its result; Ctrl-C stops it."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(lambda: _run(function, future))
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            self.runner.cancel()
            raise

    def close(self) -> None:
        """Ends all jobs and the thread."""
        with self._start:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        for job in (*self._waiting, *self._decoding, *filter(None, [self._prefilling])):
            job.cancelled = True
        self.runner.cancel()
        self._calls.put(None)
        if thread is not None:
            thread.join()

    def _post(self, call: Callable[[], None]) -> None:
        with self._start:
            if self._closed:
                msg = "the model is closed"
                raise UmbelError(msg, do="load it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="umbel", daemon=True)
                self._thread.start()
        self._calls.put(call)

    # on the engine's thread

    def _loop(self) -> None:
        while True:
            busy = bool(self._waiting or self._prefilling or self._decoding)
            while not busy or not self._calls.empty():
                call = self._calls.get()
                if call is None:
                    self._end_all()
                    return
                call()
                busy = bool(self._waiting or self._prefilling or self._decoding)
            self._turn()

    def _turn(self) -> None:
        """One piece of a prompt, then one token for everybody who is decoding."""
        if self._prefilling is None and self._waiting and self._admits(self._waiting[0]):
            self._prefilling = self._waiting.popleft()
        if self._prefilling is not None:
            self._guard([self._prefilling], self._prefill)
        live = []
        for job in self._decoding:
            if job.cancelled:
                self._finish(job, "cancelled")
            elif self._has_room(job):
                live.append(job)
        self._decoding = live
        if live:
            self._guard(live, self._decode)

    def _admits(self, job: Job) -> bool:
        """Whether there is a place among those who decode, and cells for the prompt."""
        if not self._decoding:
            return True
        cells = self.runner.cache.cells
        room = cells is None or cells.free > len(job.prompt) + len(self._decoding)
        return len(self._decoding) < self.runner.settings.parallel and room

    def _guard(self, jobs: list[Job], step: Callable[[list[Job]], None]) -> None:
        """A step that fails ends the jobs that took part in it, and nothing else."""
        try:
            step(jobs)
        except CancelledError:
            for job in jobs:
                self._finish(job, "cancelled")
        except Exception as error:
            for job in jobs:
                self._finish(job, "error", error)

    def _prefill(self, jobs: list[Job]) -> None:
        (job,) = jobs
        if job._pieces is None:
            self.runner.check_room(job.sequence, len(job.prompt))
            job._pieces = iter(self.runner.pieces(job.prompt))
            job._mark = self.runner.cache.mark(job.sequence)
        if job.cancelled:
            self._finish(job, "cancelled")
            return
        piece = next(job._pieces)
        self._running = job
        try:
            logits = self.runner.step([(job.sequence, piece)], 1)
        finally:
            self._running = None
        assert job._mark is not None
        if len(job.sequence) == job._mark.tokens + len(job.prompt):
            self.runner.cache.release(job._mark)
            job._mark = None
            self._prefilling = None
            self.runner.cache.snapshot(job.sequence)
            job.logits = logits[0]
            self._decoding.append(job)
            self._advance(job, logits[0])

    def _decode(self, jobs: list[Job]) -> None:
        batch = [(job.sequence, [job.last]) for job in jobs if job.last is not None]
        logits = self.runner.step(batch, len(batch))
        for job, row in zip(jobs, logits, strict=True):
            job.last = None
            self._guard([job], lambda _, job=job, row=row: self._advance(job, row))  # type: ignore[misc]

    def _advance(self, job: Job, logits: np.ndarray) -> None:
        """Samples the next token, and ends the job when it is the last."""
        if job.max_tokens <= 0:
            self._finish(job, "length")
            return
        token = job.sampler.sample(logits)
        pairs = job.sampler.logprobs(logits, job.logprobs, chosen=token) if job.logprobs else ()
        job.last = token
        job.sampled += 1
        job.events.put(Token(token, tuple(pairs)))
        if token in job.stop_ids:
            self._finish(job, "stop")
        elif job.sampled >= job.max_tokens:
            self._finish(job, "length")

    def _has_room(self, job: Job) -> bool:
        """Makes room for one more token, or ends the job: a context is never cut silently."""
        if len(job.sequence) < self.runner.settings.ctx:
            return True
        if job.keep < 0:
            self._finish(job, "length")
            return False
        try:
            dropped = self.runner.shift(job.sequence, job.keep)
        except UmbelError as error:
            self._finish(job, "error", error)
            return False
        job.events.put(Shifted(dropped, job.keep))
        return True

    def _finish(self, job: Job, reason: str, error: BaseException | None = None) -> None:
        if job._mark is not None:  # in the middle of its prompt: as it was before
            self.runner.cache.restore(job.sequence, job._mark)
            job._mark = None
        if self._prefilling is job:
            self._prefilling = None
        self._decoding = [j for j in self._decoding if j is not job]
        job.done(job)
        job.events.put(Done(reason, error))

    def _end_all(self) -> None:
        for job in (*self._waiting, *self._decoding, *filter(None, [self._prefilling])):
            self._finish(job, "cancelled")
        self._waiting.clear()
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call()
        for job in self._waiting:
            self._finish(job, "cancelled")


def _run(function: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def full(need: int, ctx: int) -> ContextFullError:
    """The error for a prompt that leaves no room for an answer."""
    msg = "the prompt fills the context and leaves no room for an answer"
    do = "shorten it, or load the model with a larger ctx"
    return ContextFullError(msg, expected=f"fewer than {ctx} tokens", got=need, do=do)
