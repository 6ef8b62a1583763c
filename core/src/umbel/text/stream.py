"""Ids to text, one at a time: only whole characters come out."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text as they come.

    A character whose bytes are spread over several tokens is held back until it is whole. What
    `push` and `flush` gave, joined, is what `Tokenizer.decode` makes of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._drop_space = False

    def push(self, token: int) -> str:
        """The characters that this token completes, perhaps none."""
        return self._utf8.decode(self.push_bytes(token))

    def flush(self) -> str:
        """What is left at the end: "", or U+FFFD for a character that stayed incomplete."""
        return self._utf8.decode(b"", final=True)

    def push_bytes(self, token: int) -> bytes:
        """The bytes of this token where it stands (and none of them kept for `flush`)."""
        data = self._tokenizer.token_bytes(token, special=self._special)
        first, self._first = self._first, False
        if first:
            self._drop_space = self._tokenizer.starts_text(token)
            if token == self._tokenizer.bos_id:
                return data
        if data and self._drop_space:
            self._drop_space = False
            return data.removeprefix(b" ")
        return data
