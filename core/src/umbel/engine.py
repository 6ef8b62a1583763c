"""Continuous batching: sequences join and leave between steps, on a thread of the engine's own.

Every caller hands in jobs and reads their events; only the engine's thread touches the runner
and the state of sequences. Between two steps of decoding one piece of one prompt is prefilled,
so that a long prompt holds nobody up.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import attrs
import numpy as np

from umbel.errors import CancelledError, ContextFullError, DeviceError, UmbelError
from umbel.generation import Done, Job, Token
from umbel.runner import Runner

T = TypeVar("T")
log = logging.getLogger("umbel")


@attrs.define(eq=False)
class _Call:
    function: Callable[[], Any]
    future: futures.Future[Any] = attrs.field(factory=futures.Future)
    cancelled: bool = False


class Engine:
    """Runs jobs on one model."""

    idle = 2.0  # seconds without work after which the thread ends; the next job starts another

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._posts: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Job] = deque()  # the prompt of the first one is being computed
        self._decoding: list[Job] = []
        self._current: Sequence[Job | _Call] = ()  # for whom the device computes now
        self._thread: threading.Thread | None = None
        # Reentrant: the garbage collector may cancel a job in the middle of anything.
        self._lock = threading.RLock()
        self.closed = False

    # from any thread

    def submit(self, job: Job) -> None:
        """Queues the job; its events end with `Done`."""
        self.post(lambda: self._waiting.append(job))

    def cancel(self, job: Job, wanted: int, *, wait: bool = True) -> None:
        """Ends the job between two steps; `wanted` of the sampled tokens are kept."""
        job.cancelled, job.wanted = True, wanted
        self._interrupt()
        with contextlib.suppress(UmbelError):  # closed: then it has ended
            (self.call if wait else self.post)(lambda: self._finish(job, "cancelled"))

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` between two steps and gives its result; Ctrl-C stops it."""
        if threading.current_thread() is self._thread:
            return function()
        call = _Call(function)
        self.post(lambda: self._run(call))
        try:
            result: T = call.future.result()
        except KeyboardInterrupt:
            call.cancelled = True
            if not call.future.cancel():
                self._interrupt()
                futures.wait([call.future])  # who asked finds everything settled
            raise
        return result

    def post(self, function: Callable[[], None]) -> None:
        """Runs `function` between two steps, and does not wait for it."""
        with self._lock:
            if self.closed:
                msg = "the model is closed"
                raise UmbelError(msg, do="load it again")
            self._posts.put(function)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="umbel", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends all jobs and the thread."""
        with self._lock:
            self.closed = True
            thread = self._thread
            if self._current:
                self._stop_step()
            self._posts.put(lambda: None)  # wakes it up
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _interrupt(self) -> None:
        """Stops the step that runs, when nobody wants it any more."""
        with self._lock:
            if self._current and all(task.cancelled for task in self._current):
                self._stop_step()

    def _stop_step(self) -> None:
        try:
            self.runner.cancel()
        except Exception as error:  # the step goes on to its end, and closing goes on too
            log.warning("a device could not be told to stop: %s", error)

    # on the engine's thread

    def _loop(self) -> None:
        while not self.closed or not self._posts.empty():
            busy = bool(self._waiting or self._decoding)
            try:
                post = self._posts.get(not busy, self.idle)
            except Empty:
                if busy:
                    post = self._turn
                elif self._rests():
                    return
                else:
                    continue
            try:
                post()
            except BaseException as error:  # no step's: nobody may wait for ever
                self._end_all("error", _told(error))
            del post  # what it holds can be collected while this thread waits
        self._end_all("cancelled")

    def _end_all(self, reason: str, error: Exception | None = None) -> None:
        for job in (*self._waiting, *self._decoding):
            self._finish(job, reason, error)

    def _rests(self) -> bool:
        """Ends the thread, so that a model that nobody holds any more can be collected."""
        with self._lock:
            if self._posts.empty():
                self._thread = None
            return self._thread is None

    def _run(self, call: _Call) -> None:
        if call.future.set_running_or_notify_cancel():
            try:
                with self._computing([call]):
                    result = call.function()
            except BaseException as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(result)

    def _turn(self) -> None:
        """One piece of a prompt, then one token for everybody who is decoding."""
        if self._waiting and self._admits(self._waiting[0]):
            self._guard([self._waiting[0]], self._prefill)
        for job in self._decoding:
            if len(job.sequence) >= self.runner.settings.ctx:
                self._guard([job], self._make_room)
        while self.runner.room < len(self._decoding):
            msg = "sessions that are open leave no room for the next token"
            do = "close sessions, or load the model with a larger ctx or parallel"
            self._finish(self._decoding[-1], "error", ContextFullError(msg, do=do))
        jobs, widest = self._decoding, self.runner.widest
        for i in range(0, len(jobs), widest):
            self._guard(jobs[i : i + widest], self._decode)

    def _admits(self, job: Job) -> bool:
        """Whether there is a place among those who decode, and cells for the prompt."""
        if job.before is not None or not self._decoding:
            return True
        cells = self.runner.cache.cells
        room = cells is None or cells.free > len(job.prompt) + len(self._decoding)
        return len(self._decoding) < self.runner.settings.parallel and room

    def _guard(self, jobs: list[Job], step: Callable[[list[Job]], None]) -> None:
        """A step that fails ends the jobs that took part in it, and nothing else."""
        try:
            with self._computing(jobs):
                step(jobs)
        except Exception as error:
            stopped = isinstance(error, CancelledError)
            for job in jobs:
                self._finish(job, "cancelled") if stopped else self._finish(job, "error", error)

    @contextlib.contextmanager
    def _computing(self, tasks: Sequence[Job | _Call]) -> Iterator[None]:
        with self._lock:
            self._current = tasks
            self.runner.cancelled = self.closed or all(task.cancelled for task in tasks)
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            raise _told(error) from error
        finally:
            with self._lock:
                self._current = ()

    def _prefill(self, jobs: list[Job]) -> None:
        (job,) = jobs
        cache = self.runner.cache
        if job.before is None:
            job.before = cache.fork(job.sequence)
        left = job.prompt[len(job.sequence) - len(job.before) :]
        piece = self.runner.piece(left)
        logits = self.runner.step([(job.sequence, piece)], 1)
        if len(piece) == len(left):
            cache.close(job.before)
            job.before, job.pending = None, []
            cache.snapshot(job.sequence)
            self._decoding.append(self._waiting.popleft())
            self._advance(logits[0], jobs)

    def _decode(self, jobs: list[Job]) -> None:
        ids = [job.pending[0] for job in jobs]
        logits = self.runner.decode([job.sequence for job in jobs], ids)
        for job, row in zip(jobs, logits, strict=True):
            job.pending = []
            self._guard([job], partial(self._advance, row))

    def _advance(self, logits: np.ndarray, jobs: list[Job]) -> None:
        """Samples the next token, and ends the job when it is the last."""
        (job,) = jobs
        if job.max_tokens <= 0:
            self._finish(job, "length")
            return
        token = job.sampler.sample(logits)
        wanted = job.logprobs >= 0
        pairs = job.sampler.logprobs(logits, job.logprobs, chosen=token) if wanted else ()
        job.last = time.perf_counter()
        job.first = job.first or job.last
        job.pending = [token]
        job.sampled += 1
        ends = token in job.stop_ids
        job.events.put(Token(token, "" if ends else job.output.push(token), tuple(pairs)))
        full = job.keep < 0 and len(job.sequence) + 1 >= self.runner.settings.ctx
        if ends or job.output.stop_string is not None:
            self._finish(job, "stop")
        elif full or job.sampled >= job.max_tokens:
            self._finish(job, "length")

    def _make_room(self, jobs: list[Job]) -> None:
        """Shifts a context that is full. When that fails, what it dropped is pending."""
        (job,) = jobs
        before = list(job.sequence.tokens)
        try:
            job.dropped += self.runner.shift(job.sequence, job.keep)
        except BaseException:
            job.pending = [*before[len(job.sequence) :], *job.pending]
            raise

    def _finish(self, job: Job, reason: str, error: BaseException | None = None) -> None:
        if job.ended:  # before it was cancelled: what nobody has read is not wanted
            job.done(job)
            return
        job.ended = True
        self._decoding = [j for j in self._decoding if j is not job]
        self._waiting = deque(j for j in self._waiting if j is not job)
        text = ""
        try:
            if job.before is not None:  # in the middle of its prompt
                self.runner.cache.restore(job.sequence, job.before)
            text = job.output.flush()
            if reason == "length" and job.output.stop_string is not None:
                reason = "stop"
            job.done(job)
        except Exception as fault:  # the others go on whatever it is
            reason, error = "error", error or fault
        job.events.put(Done(reason, text, error))


def _told(error: BaseException) -> Exception:
    """What readers are told: they need not obey an interrupt that a plugin raised."""
    if isinstance(error, Exception):
        return error
    msg = "the step was ended by something that is no error"
    failed = DeviceError(msg, got=repr(error), do="report it to the authors of the plugin")
    failed.__cause__ = error
    return failed
