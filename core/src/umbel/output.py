"""What sampled tokens become: text in whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from umbel.sampling import StopStrings
from umbel.text import StreamDecoder, Tokenizer


class Output:
    """The text of one answer. `before` are the tokens that it continues."""

    def __init__(
        self, tokenizer: Tokenizer, before: Iterable[int], stop: Sequence[str] = ()
    ) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stops = StopStrings(stop)
        for token in before:  # past the place where a text starts: there a space is dropped
            if self._decoder.push_bytes(token):
                break

    @property
    def stop_string(self) -> str | None:
        """The stop string that has come, if one has; nothing comes after it."""
        return self._stops.found

    def push(self, token: int) -> str:
        """The characters that are safe to show after this token, perhaps none."""
        return self._stops.push(self._decoder.push(token))

    def flush(self) -> str:
        """What was held back, when no more tokens come."""
        return self._stops.push(self._decoder.flush()) + self._stops.flush()
