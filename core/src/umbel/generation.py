"""What a request gives back: pieces of text as they come, and at the end the figures."""

from __future__ import annotations

from collections.abc import Iterator

from umbel.engine import Done, Engine, Event, Job, Shifted, Token


class Generation(Iterator[str]):
    """An iterator of pieces of text, each of whole characters; the sum of them is `text`.

    The computation runs ahead of the reader. `close`, the end of a `with` block, Ctrl-C in the
    reader and the loss of the last reference stop it; a session then goes on after the last
    token that was read. While `finish_reason` is None there may be more to read; then it is
    "stop" (the model ended, or a stop string came), "length" or "cancelled". What went wrong is
    raised to the reader, and the reason is "error".
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self.prompt_tokens = len(job.prompt)  # those that had to be computed
        self.tokens: list[int] = []
        self.logprobs: list[tuple[tuple[int, float], ...]] = []  # (id, log p) for each token
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.dropped = 0  # tokens that context shifts have dropped
        self.seed = job.sampler.seed
        self.prefill_seconds = 0.0  # from the request to the first token
        self.decode_seconds = 0.0  # from the first token to the last
        self._engine, self._job = engine, job
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
        """Stops the computation, if it still runs."""
        if self.finish_reason is None:
            self._engine.cancel(self._job, len(self.tokens))
            while not isinstance(self._job.events.get(), Done):
                pass
            self._end("cancelled")

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.finish_reason is None:
            self._engine.cancel(self._job, len(self.tokens), wait=False)

    def _next_event(self) -> Event:
        try:
            return self._job.events.get()
        except KeyboardInterrupt:
            self.close()
            raise

    def _take(self, event: Event) -> str:
        if isinstance(event, Shifted):
            self.dropped += event.dropped
            return ""
        if isinstance(event, Token):
            self.tokens.append(event.id)
            if event.logprobs:
                self.logprobs.append(event.logprobs)
            return event.text
        self._end(event.reason)
        self.stop_string = self._job.output.stop_string
        if event.error is not None:
            raise event.error
        return event.text

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        if self._job.first:
            self.prefill_seconds = self._job.first - self._job.began
            self.decode_seconds = self._job.last - self._job.first
