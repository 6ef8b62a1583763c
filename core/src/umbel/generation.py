"""A request and what it gives back: pieces of text as they come, at the end the figures.

The engine's thread fills the `Job`, whoever asked reads the `Generation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import attrs

from umbel.sampling import Sampler, StopStrings
from umbel.state import Sequence as Seq
from umbel.text import StreamDecoder, Tokenizer

if TYPE_CHECKING:
    from umbel.engine import Engine


class Output:
    """The text of one answer. `before` are the tokens that it continues.

    It is `exact` where it has to obey a constraint: nothing is left out at its beginning, nor
    put in the place of a character that its end cuts. With `special`, control tokens show.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        before: Iterable[int],
        stop: Sequence[str] = (),
        *,
        special: bool = False,
        exact: bool = False,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, special=special, exact=exact)
        self.stops = StopStrings(stop)
        for token in before:  # past the place where a text starts: there a space is dropped
            if self._decoder.push_bytes(token):
                break

    def push(self, token: int) -> str:
        """The characters that are safe to show after this token, perhaps none."""
        return self.stops.push(self._decoder.push(token))

    def flush(self) -> str:
        """What was held back, when no more tokens come."""
        return self.stops.push(self._decoder.flush(), last=True)


@attrs.frozen
class Token:
    """One sampled token, with the characters it completes.

    `logprobs` are (id, log probability) of the best ones and of it.
    """

    id: int
    text: str
    logprobs: tuple[tuple[int, float], ...] = ()
    at: float = attrs.field(factory=time.perf_counter, eq=False)  # when it was sampled


@attrs.frozen
class Done:
    """The end: "stop" (of the text, or a stop string), "length", "cancelled" or "error"."""

    reason: str
    text: str = ""  # what was held back
    error: Exception | None = None


Event = Token | Done


@attrs.define(eq=False)
class Job:
    """One request: compute what is `due`, then sample up to `max_tokens`.

    The tokens of the prompt and those that are sampled join `tokens`. When it ends before the
    prompt is computed, the sequence is what it was, and `tokens` too.
    """

    sequence: Seq
    tokens: list[int]  # begin with those of the sequence; the others are not computed yet
    prompt: list[int]
    sampler: Sampler
    output: Output
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    keep: int = -1  # tokens kept in front when the context is shifted; -1: end instead
    logprobs: int = -1  # how many; -1: none at all
    draft_max: int = 0  # tokens of a draft at most
    draft_next: int = 7  # tokens of the next draft, if there is room for them
    transient: bool = False  # the sequence goes when the job has ended
    notify: Callable[[], None] | None = None  # called on the engine's thread after each event
    owner: object = None  # of the sequence: is not collected before the job
    events: SimpleQueue[Event] = attrs.field(factory=SimpleQueue)
    # (sampled until then, tokens that were dropped) each time that the context was full
    shifts: list[tuple[int, list[int]]] = attrs.field(factory=list)
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0  # of those drafted
    cancelled: bool = False
    ended: bool = False
    before: Seq | None = None  # a fork, while the prompt is computed
    cached: int = 0  # tokens of the prompt that others had computed

    def tell(self, event: Event) -> None:
        self.events.put(event)
        if self.notify is not None:
            self.notify()

    @property
    def left(self) -> int:
        """How many tokens are due."""
        return len(self.tokens) + len(self.prompt) - len(self.sequence)

    @property
    def due(self) -> list[int]:
        """What is left to compute before there is something to sample from."""
        return [*self.tokens, *self.prompt][len(self.sequence) :]


class Generation(Iterator[str], AbstractContextManager["Generation"]):
    """An iterator of pieces of text, each of whole characters; the sum of them is `text`.

    The computation runs ahead of the reader. `close`, the end of a `with` block, Ctrl-C in the
    reader and the loss of the last reference stop it; a session then goes on after the last
    token that was read. While `finish_reason` is None there may be more to read; then it is
    "stop" (the model ended, or a stop string came), "length" or "cancelled". What went wrong is
    raised to the reader, and the reason is "error".
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self.prompt_tokens = len(job.due)  # those that had to be computed
        self.tokens: list[int] = []
        self.logprobs: list[tuple[tuple[int, float], ...]] = []  # (id, log p) for each token
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.seed = job.sampler.seed
        self.dropped = 0  # tokens, by context shifts until the end
        self.drafted = self.accepted = 0  # tokens of drafts, until the end
        self.prefill_seconds = 0.0  # from the request to the first token
        self.decode_seconds = 0.0  # from the first token to the last
        self._began = self._first = time.perf_counter()
        self._engine, self._job = engine, job
        engine.submit(job)

    def __next__(self) -> str:
        while self.finish_reason is None:
            try:
                piece = self._take(self._next())
            except KeyboardInterrupt:
                self.close()
                raise
            if piece:
                self.text += piece
                return piece
        raise StopIteration

    def read(self) -> str:
        """Waits for the end; the whole text."""
        list(self)
        return self.text

    def poll(self) -> str:
        """The text that has come by now, without waiting; `finish_reason` tells whether that
        is all. For who is told by `notify`."""
        text = ""
        while self.finish_reason is None:
            try:
                text += self._take(self._job.events.get_nowait())
            except Empty:
                break
        self.text += text
        return text

    def cancel(self) -> None:
        """Stops the computation within a step, and does not wait for that."""
        if self.finish_reason is None:
            self._engine.cancel(self._job, len(self.tokens), wait=False)

    @property
    def cached(self) -> int:
        """How many tokens of the prompt had been computed for others."""
        return self._job.cached

    def close(self) -> None:
        """Stops the computation, if it still runs."""
        if self.finish_reason is None:
            self._engine.cancel(self._job, len(self.tokens))
            while not isinstance(self._next(), Done):
                pass
            self._settle("cancelled")

    def _next(self) -> Event:
        """The next event. The end stays: a thread may close what another one reads."""
        event = self._job.events.get()
        if isinstance(event, Done):
            self._job.events.put(event)
        return event

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.finish_reason is None:
            self._engine.cancel(self._job, len(self.tokens), wait=False)

    def _take(self, event: Event) -> str:
        if isinstance(event, Token):
            if not self.tokens:
                self._first = event.at
                self.prefill_seconds = event.at - self._began
            self.decode_seconds = event.at - self._first
            self.tokens.append(event.id)
            if event.logprobs:
                self.logprobs.append(event.logprobs)
            return event.text
        self._settle(event.reason)
        self.stop_string = self._job.output.stops.found
        if event.error is not None:
            raise event.error
        return event.text

    def _settle(self, reason: str) -> None:
        self.finish_reason = reason
        self.dropped = sum(len(tokens) for _, tokens in self._job.shifts)
        self.drafted, self.accepted = self._job.drafted, self._job.accepted
