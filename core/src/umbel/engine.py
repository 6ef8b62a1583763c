"""Continuous batching: sequences join and leave between steps, on a thread of the engine's own.

Every caller hands in jobs and reads their events; only the engine's thread touches the runner
and the state of sequences. Between two steps of decoding one piece of one prompt is prefilled,
so that a long prompt holds nobody up: the piece takes as long as a few such steps. Who decodes
alone may have a draft checked in the same step.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

import attrs
import numpy as np

from umbel.draft import Proposer
from umbel.errors import CancelledError, ContextFullError, DeviceError, UmbelError
from umbel.generation import Done, Job, Token
from umbel.pace import Pace
from umbel.runner import Runner
from umbel.state import Sequence as Seq

log = logging.getLogger("umbel")

T = TypeVar("T")


class Shared(Protocol):
    """What requests have in common. Called on the engine's thread, between two steps."""

    def adopt(self, sequence: Seq, ids: list[int], others: list[Seq]) -> int:
        """Gives an empty sequence what is computed of `ids`; says how many those are."""

    def keep(self, sequence: Seq) -> None:
        """A request is over: the sequence will be closed."""


@attrs.define(eq=False)
class _Call:
    function: Callable[[], Any]
    future: futures.Future[Any] = attrs.field(factory=futures.Future)
    cancelled: bool = False


class Engine:
    """Runs jobs on one model, until it is stopped or closed."""

    def __init__(
        self, runner: Runner, draft: Proposer | None = None, draft_max: int = 0
    ) -> None:
        self.runner = runner
        self.draft, self.draft_max = draft, draft_max
        self.runners = (runner, *(draft.runners if draft else ()))
        self.shared: Shared | None = None
        self._pace = Pace()
        self._oldest = False  # whose prompt goes on: that of the first one, or the shortest
        self._posts: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: list[Job] = []  # some of their prompts are being computed
        self._decoding: list[Job] = []
        self._current: Sequence[Job | _Call] = ()  # for whom the device computes now
        # Reentrant: the garbage collector may cancel a job in the middle of anything.
        self._lock = threading.RLock()
        self.closed = False
        self._thread = threading.Thread()  # none yet

    # from any thread

    @property
    def jobs(self) -> int:
        """How many are under way, or wait."""
        return len(self._waiting) + len(self._decoding) + self._posts.qsize()

    def submit(self, job: Job) -> None:
        """Queues the job; its events end with `Done`."""
        self.post(lambda: self._waiting.append(job))

    def cancel(self, job: Job, wanted: int, *, wait: bool = True) -> None:
        """Ends the job between two steps; `wanted` of the sampled tokens are kept."""
        job.cancelled = True
        self._interrupt()
        with contextlib.suppress(UmbelError):  # closed: then it has ended
            (self.call if wait else self.post)(lambda: self._take_back(job, wanted))

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` between two steps and gives its result; Ctrl-C stops it."""
        if threading.current_thread() is self._thread:
            return function()
        call = _Call(function)
        try:
            self.post(lambda: self._run(call))
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
            # at the end of the process a thread may begin, and never run
            if self.closed or sys.is_finalizing():
                msg = "the model is closed"
                raise UmbelError(msg, do="load it again")
            self._posts.put(function)
            if not self._thread.is_alive():  # nor is it in the child of a process that forks
                self._thread = threading.Thread(target=self._loop, name="umbel", daemon=True)
                self._thread.start()

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """Ends all jobs and the thread, and does not wait for it; its last work is `then`."""
        with self._lock:
            self.closed = True
            if self._current:
                self._cancel_step()
            self._posts.put(then)  # wakes it up

    def close(self) -> None:
        """Ends all jobs and the thread."""
        self.stop()
        with contextlib.suppress(RuntimeError):  # it is this one, or nobody needed it
            self._thread.join()

    def _interrupt(self) -> None:
        """Stops the step that runs, when nobody wants it any more."""
        with self._lock:
            if self._current and all(task.cancelled for task in self._current):
                self._cancel_step()

    def _cancel_step(self) -> None:
        for runner in self.runners:
            runner.stop.ask()

    # on the engine's thread

    def _loop(self) -> None:
        while not self.closed or not self._posts.empty():
            busy = bool(self._waiting or self._decoding)
            try:
                post = self._posts.get(not busy)
            except Empty:
                post = self._turn
            try:
                post()
            except BaseException as error:  # no step's: nobody may wait for ever
                self._end(self._waiting + self._decoding, "error", _told(error))
            del post  # what it holds can be collected while this thread waits
        self._end(self._waiting + self._decoding, "cancelled")

    def _end(self, jobs: Sequence[Job], reason: str, error: Exception | None = None) -> None:
        for job in jobs:
            self._finish(job, reason, error)

    def _run(self, call: _Call) -> None:
        if call.future.set_running_or_notify_cancel():
            try:
                with self._computing([call]):
                    result = call.function()
            except BaseException as error:
                call.future.set_exception(_told(error))
            else:
                call.future.set_result(result)

    def _turn(self) -> None:
        """One piece of a prompt, then one token for everybody who is decoding."""
        if job := self._next_prompt():
            self._guard([job], self._prefill, job)
        for job in self._decoding:
            if len(job.sequence) >= self.runner.settings.ctx:
                self._guard([job], self._make_room, job)
            elif len(self._decoding) > 1 and (behind := job.tokens[len(job.sequence) : -1]):
                # a recurrent state that went back with a draft
                self._guard([job], self.runner.forward, job.sequence, behind)
        while not self.runner.cache.make_room(*[len(self._decoding)] * 2):
            msg = "sessions that are open leave no room for the next token"
            do = "close sessions, or load the model with a larger ctx or parallel"
            self._finish(self._decoding[-1], "error", ContextFullError(msg, do=do))
        jobs, widest = self._decoding, self.runner.widest
        if len(jobs) == 1 and jobs[0].draft_max:
            self._guard(jobs, self._speculate, jobs[0])
            return
        for i in range(0, len(jobs), widest):
            group = jobs[i : i + widest]
            self._guard(group, self._decode, group)

    def _next_prompt(self) -> Job | None:
        """Whose prompt goes on: the shortest may pass the first one every other time, once
        that has its place, so that neither waits for long."""
        if not self._waiting:
            return None
        first, self._oldest = self._waiting[0], not self._oldest
        if self._oldest or first.before is None:
            return first if self._admits(first) else None
        shortest = min(self._waiting, key=attrgetter("left"))
        return shortest if self._admits(shortest) else first

    def _admits(self, job: Job) -> bool:
        """Whether there is a place among those who decode, and cells for the prompt."""
        if job.before is not None:
            return True
        if self.shared is not None and job.transient and not len(job.sequence):
            running = [j.sequence for j in self._decoding]
            job.cached = self.shared.adopt(job.sequence, job.prompt, running)
        begun = [j for j in self._waiting if j.before is not None]
        if not (others := len(begun) + len(self._decoding)):
            return True
        needed = job.left + sum(j.left for j in begun) + others
        room = self.runner.cache.make_room(needed + 1, 1)
        return others < self.runner.settings.parallel and room

    def _guard(self, jobs: Sequence[Job], step: Callable[..., object], *args: Any) -> None:
        """A step that fails ends the jobs that took part in it, and nothing else."""
        try:
            with self._computing(jobs):
                step(*args)
        except CancelledError:
            self._end(jobs, "cancelled")
        except BaseException as error:
            self._end(jobs, "error", _told(error))

    @contextlib.contextmanager
    def _computing(self, tasks: Sequence[Job | _Call]) -> Iterator[None]:
        with self._lock:
            self._current = tasks
            for runner in self.runners:
                runner.stop.asked = self.closed or all(task.cancelled for task in tasks)
        try:
            yield
        finally:
            with self._lock:
                self._current = ()

    def _prefill(self, job: Job) -> None:
        cache, due = self.runner.cache, job.due
        if job.before is None:
            job.before = cache.fork(job.sequence)
        most = self._pace.piece if self._decoding else len(due)
        piece = self.runner.piece(due[:most], len(job.sequence))
        with self._pace.timed("prefill", len(piece)):
            logits = self.runner.step([(job.sequence, piece)], 1)
        if len(piece) == len(due):
            cache.close(job.before)
            job.before = None
            job.tokens += job.prompt
            cache.snapshot(job.sequence)
            self._waiting = [j for j in self._waiting if j is not job]
            self._decoding.append(job)
            self._advance(job, logits[0])

    def _decode(self, jobs: Sequence[Job]) -> None:
        ids = [job.tokens[-1] for job in jobs]
        with self._pace.timed("decode"):
            logits = self.runner.decode([job.sequence for job in jobs], ids)
        for job, row in zip(jobs, logits, strict=True):
            self._guard([job], self._advance, job, row)

    def _speculate(self, job: Job) -> None:
        """Computes a draft with what is due, and keeps of it what the sampler chooses too."""
        cache, sequence, kept = self.runner.cache, job.sequence, job.sequence.snapshots
        due = job.tokens[len(sequence) :]
        ids = self.runner.piece(due + self._guess(job, len(due)), len(job.sequence))
        draft = ids[len(due) :]
        if draft:
            cache.snapshot(sequence)
            logits = self.runner.step([(sequence, ids)], len(ids))[len(due) - 1 :]
        else:
            logits = self.runner.forward(sequence, due)
        job.drafted += len(draft)
        accepted = job.accepted
        for row, guess in zip(logits, [*draft, None], strict=True):
            self._advance(job, row, guess)
            if job.ended or job.tokens[-1] != guess:
                break
        cache.rewind(sequence, len(job.tokens) - 1)
        # The draft's own snapshot would push out those that users go back to.
        cache.remember(sequence, [s for s in sequence.snapshots if s in kept])
        if draft:  # about as much as was right last time
            job.draft_next = max(3, 2 * (job.accepted - accepted) + 1)

    def _guess(self, job: Job, due: int) -> list[int]:
        """A draft that makes the step 2, 4, 8 ... tokens long, so that few plans serve all."""
        ctx, free = self.runner.settings.ctx, self.runner.cache.cells.free
        wanted = min(job.draft_max, job.draft_next, job.max_tokens - job.sampled - 1)
        room = min(wanted, ctx - len(job.tokens), free - due)
        n = (1 << (due + room).bit_length() - 1) - due if room > 0 else 0
        if self.draft is None or n < 1:
            return []
        try:
            return self.draft.propose(job.tokens, n)
        except Exception as error:
            if self.runner.stop.asked or self.runner.settings.strict:
                raise
            log.warning("the answer goes on without drafts: %s", error)
            job.draft_next = 0
            return []

    def _advance(self, job: Job, logits: np.ndarray, guess: int | None = None) -> None:
        """Samples the next token, and ends the job when it is the last."""
        if job.max_tokens <= 0:
            self._finish(job, "length")
            return
        token = job.sampler.sample(logits)
        wanted = job.logprobs >= 0
        pairs = job.sampler.logprobs(logits, job.logprobs, chosen=token) if wanted else ()
        job.tokens.append(token)
        job.sampled += 1
        job.accepted += token == guess
        ends = token in job.stop_ids
        job.tell(Token(token, "" if ends else job.output.push(token), tuple(pairs)))
        full = job.keep < 0 and len(job.tokens) >= self.runner.settings.ctx
        if ends or job.output.stops.found or job.sampler.done:
            self._finish(job, "stop")
        elif full or job.sampled >= job.max_tokens:
            self._finish(job, "length")

    def _make_room(self, job: Job) -> None:
        """Shifts a context that is full."""
        gone = slice(job.keep, job.keep + self.runner.shift(job.sequence, job.keep))
        job.shifts.append((job.sampled, job.tokens[gone]))
        del job.tokens[gone]

    def _finish(self, job: Job, reason: str, error: Exception | None = None) -> None:
        if job.ended:
            return
        job.ended = True
        self._decoding = [j for j in self._decoding if j is not job]
        self._waiting = [j for j in self._waiting if j is not job]
        text = ""
        try:
            if job.before is not None:  # in the middle of its prompt
                self.runner.cache.restore(job.sequence, job.before)
            elif job.sampled:  # a draft may reach beyond the end
                self.runner.cache.rewind(job.sequence, len(job.tokens) - 1)
            text = job.output.flush()
            if reason == "length" and job.output.stops.found:
                reason = "stop"
            if job.transient:
                if self.shared is not None and error is None:
                    self.shared.keep(job.sequence)
                self.runner.cache.close(job.sequence)
        except Exception as fault:  # the others go on whatever it is
            reason, error = "error", error or fault
        job.tell(Done(reason, text, error))

    def _take_back(self, job: Job, wanted: int) -> None:
        """Ends the job, and drops what was sampled beyond `wanted`: nobody has read it."""
        self._finish(job, "cancelled")
        while job.shifts and job.shifts[-1][0] > wanted:  # it was for tokens that nobody read
            self.runner.cache.rewind(job.sequence, job.keep)
            job.tokens[job.keep : job.keep] = job.shifts.pop()[1]
        left = len(job.tokens) - (job.sampled - wanted)
        del job.tokens[left:]
        self.runner.cache.rewind(job.sequence, left)


def _told(error: BaseException) -> Exception:
    """What readers are told: they need not obey an interrupt that a plugin raised."""
    if isinstance(error, Exception):
        return error
    msg = "the step was ended by something that is no error"
    failed = DeviceError(msg, got=repr(error), do="report it to the authors of the plugin")
    failed.__cause__ = error
    return failed
