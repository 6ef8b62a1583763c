"""What a request gives back: pieces of text as they come, and at the end the figures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from umbel.engine import Done, Engine, Event, Job, Shifted, Token
from umbel.sampling import StopStrings
from umbel.text import StreamDecoder, Tokenizer


class Generation(Iterator[str]):
    """An iterator of pieces of text, each of whole characters; the sum of them is `text`.

    Leaving the iteration early, `close` or the end of a `with` block stops the computation.
    `finish_reason` is "stop" (the model ended, or a stop string came), "length" or "cancelled".
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        special: bool = False,
    ) -> None:
        self.prompt_tokens = len(job.prompt)
        self.tokens: list[int] = []
        self.logprobs: list[tuple[tuple[int, float], ...]] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.dropped = 0  # tokens that context shifts have dropped
        self.seed = job.sampler.seed
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._engine, self._job = engine, job
        self._decoder = StreamDecoder(tokenizer, special=special)
        self._stops = StopStrings(list(stop)) if stop else None
        self._began = time.perf_counter()
        self._first = 0.0
        engine.submit(job)

    def __next__(self) -> str:
        while self.finish_reason is None:
            piece = self._take(self._next_event())
            if piece:
                self.text += piece
                return piece
        raise StopIteration

    def read(self) -> str:
        """Waits for the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """Stops the computation; what was computed so far stays."""
        if self.finish_reason is None:
            self._engine.cancel(self._job)
            while not isinstance(event := self._next_event(), Done):
                self._take(event)
            self._end(event.reason if event.reason != "error" else "cancelled")

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self.finish_reason is None:
            self._engine.cancel(self._job)

    def _next_event(self) -> Event:
        return self._job.events.get()

    def _take(self, event: Event) -> str:
        if isinstance(event, Shifted):
            self.dropped += event.dropped
            return ""
        if isinstance(event, Token):
            return self._token(event)
        rest = "" if self.stop_string is not None else self._decoder.flush()
        if self._stops is not None and self.stop_string is None:
            rest = self._stops.push(rest) + self._stops.flush()
        found = self._stops.found if self._stops else None
        self._end("stop" if found is not None and event.reason != "error" else event.reason)
        if event.error is not None:
            raise event.error
        return rest

    def _token(self, event: Token) -> str:
        if not self.tokens:
            self._first = time.perf_counter()
            self.prefill_seconds = self._first - self._began
        self.tokens.append(event.id)
        if event.logprobs:
            self.logprobs.append(event.logprobs)
        if event.id in self._job.stop_ids:
            return ""
        piece = self._decoder.push(event.id)
        if self._stops is None:
            return piece
        safe = self._stops.push(piece)
        if self._stops.found is not None:
            self.stop_string = self._stops.found
            self._engine.cancel(self._job)
            while not isinstance(self._next_event(), Done):
                pass
            self._end("stop")
        return safe

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        if self._first:
            self.decode_seconds = time.perf_counter() - self._first
