"""The tokenizer of a model: text to ids and back, whatever kind of model it is.

Three rules hold for all of them:

* The texts of control tokens are ordinary text unless `special=True`. Those of user-defined
  tokens are always found, as the files mean it.
* At most one BOS opens a text: where BOS is to be added and the text's own first token is BOS
  already (a chat template wrote it, or a completion was given with it; with `special=True`), it
  is not added again. In the same way EOS at the end.
* A text may hold any bytes: given as `bytes`, or in a `str` as Python's surrogateescape writes
  them. Half of a UTF-16 pair is no text.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Protocol

import attrs
import numpy as np

from umbel.errors import TokenizerError
from umbel.text.vocab import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Vocab, to_bytes

CACHED_PIECES = 1 << 15
CACHED_LENGTH = 64  # longer pieces hardly come again
MARK = "\ufdd0"  # a Unicode noncharacter: never part of a text


class Coder(Protocol):
    """One way of encoding text without special tokens, and of decoding an ordinary token."""

    @property
    def space_prefix(self) -> bool:
        """Whether `split` puts a space before a text: decoding takes it away again."""

    def split(self, text: str, /) -> list[str]:
        """The pieces to encode, of a text that starts here or after a special token."""

    def encode(self, piece: str, /) -> tuple[int, ...]: ...

    def text_of(self, token: str, /) -> bytes: ...


@attrs.frozen(eq=False)
class Matcher:
    """Finds given texts in a text: the leftmost, and of several there the longest.

    None has a MARK in it or just after it. The ids in `greedy` swallow the blanks that follow
    them.
    """

    ids: Mapping[str, int]
    greedy: frozenset[int] = frozenset()

    def split(self, text: str) -> list[str | int]:
        """The text in order, with ids in the place of what was found."""
        out: list[str | int] = []
        done = 0
        for first in self._firsts.finditer(text):
            i = first.start()
            from_i = (text[i : i + n] for n in self._lengths if i >= done)
            found = next((piece for piece in from_i if piece in self.ids), None)
            if found is not None and not text.startswith(MARK, i + len(found)):
                out += [text[done:i], self.ids[found]]
                done = i + len(found)
                if self.ids[found] in self.greedy:
                    done = len(text) - len(text[done:].lstrip())
        return [piece for piece in (*out, text[done:]) if piece != ""]

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted(set(map(len, self.ids)), reverse=True)

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        firsts = {re.escape(text[0]) for text in self.ids}
        # Without texts: a pattern that matches nowhere.
        return re.compile(f"(?:{'|'.join(firsts) or '(?!)'})(?!{MARK})")


@attrs.frozen(eq=False)
class Tokenizer:
    """Text to ids and back. Made by `load_tokenizer`; safe to share between threads."""

    vocab: Vocab
    coder: Coder
    bos_id: int | None
    eos_id: int | None
    first: list[int]  # BOS, if the model wants one before each text
    last: list[int]  # EOS, if it wants one after it
    control: Matcher
    defined: Matcher

    @property
    def n_vocab(self) -> int:
        return len(self.vocab.tokens)

    def encode(
        self, text: str | bytes, *, special: bool = False, bos: bool = True, eos: bool = True
    ) -> list[int]:
        """The ids of a text; with `special`, the texts of control tokens become those tokens.

        Not where a MARK stands in such a text; all marks are taken out. Without `bos` or `eos`,
        none is put around the text, though the model wants it.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        for piece in self.control.split(text) if special else [text]:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_text(piece.replace(MARK, "") if special else piece)
        if bos and ids[:1] != self.first:
            ids = self.first + ids
        return ids + self.last if eos and ids[-1:] != self.last else ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of the ids; control tokens only show with `special`.

        What is not UTF-8 becomes U+FFFD. Where the text starts (after a first BOS; at the first
        id in a model that has no BOS), the space that `encode` put there is left out. Elsewhere
        ids may continue a text: it stays.
        """
        stream = StreamDecoder(self, special=special)
        return "".join(map(stream.push, self.check_ids(ids))) + stream.flush()

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes that a token adds to a text."""
        self.check_ids([token])
        text, kind = self.vocab.tokens[token], self.vocab.kinds[token]
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if kind in (CONTROL, UNKNOWN):
            return to_bytes(text) if special else b""
        return to_bytes(text) if kind == USER_DEFINED else self.coder.text_of(text)

    def check_ids(self, ids: Iterable[Any]) -> list[int]:
        """The ids as integers; what is none of this vocabulary is refused with its position."""
        n = self.n_vocab
        good: list[int] = []
        for i in ids:
            # A negative id would count from the end.
            if not isinstance(i, (int, np.integer)) or not 0 <= i < n:
                msg, where = "this is not a token id of the model", f"position {len(good)}"
                raise TokenizerError(msg, where=where, expected=f"0 to {n - 1}", got=repr(i))
            good.append(int(i))
        return good

    def _encode_text(self, text: str) -> Iterator[int]:
        """The ids of a text without control tokens."""
        try:
            to_bytes(text)
        except UnicodeEncodeError as error:
            msg = "the text holds half of a UTF-16 pair, which is no character"
            where, got = f"position {error.start}", repr(text[error.start])
            raise TokenizerError(msg, where=where, expected="Unicode text", got=got) from error
        for piece in self.defined.split(text):
            if isinstance(piece, int):
                yield piece
            else:
                for word in self.coder.split(piece):
                    yield from self._encode_word(word)

    @cached_property
    def _encode_word(self) -> Callable[[str], tuple[int, ...]]:
        encode = self.coder.encode
        cached = lru_cache(CACHED_PIECES)(encode)  # words come again and again
        return lambda word: cached(word) if len(word) <= CACHED_LENGTH else encode(word)


class StreamDecoder:
    """Turns ids into text as they come, in whole characters.

    A character whose bytes are spread over several tokens is held back until it is whole. What
    `push` and `flush` gave, joined, is what `Tokenizer.decode` makes of all the ids; unless it
    is to be `exact`: then it is all that they add, up to the last character that is whole.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, exact: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._exact = exact
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        prefixed = tokenizer.coder.space_prefix and not exact
        self._space = b" " if prefixed else b""  # before the first text
        self._drop_space = tokenizer.bos_id is None

    def push(self, token: int) -> str:
        """The characters that this token completes, perhaps none."""
        return self._utf8.decode(self.push_bytes(token))

    def flush(self) -> str:
        """What is left at the end: "", or U+FFFD for a character that stayed incomplete."""
        return "" if self._exact else self._utf8.decode(b"", final=True)

    def push_bytes(self, token: int) -> bytes:
        """The bytes of this token where it stands (and none of them kept for `flush`)."""
        data = self._tokenizer.token_bytes(token, special=self._special)
        if token == self._tokenizer.bos_id:
            self._drop_space = True
        elif data:
            data = data.removeprefix(self._space if self._drop_space else b"")
            self._space = b""
        return data
