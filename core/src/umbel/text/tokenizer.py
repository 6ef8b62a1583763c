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

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Protocol

import attrs
import numpy as np

from umbel.errors import TokenizerError
from umbel.text.stream import StreamDecoder
from umbel.text.vocab import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Vocab, to_bytes

Text = str | bytes
CACHED_PIECES = 1 << 15
CACHED_LENGTH = 64  # longer pieces hardly come again


class Coder(Protocol):
    """One way of encoding text without special tokens, and of decoding an ordinary token."""

    @property
    def space_prefix(self) -> bool:
        """Whether `encode` puts a space before a text: decoding takes it away again."""

    def split(self, text: str) -> Iterable[str]:
        """The pieces to encode, of a text that starts here or after a special token."""

    def encode(self, piece: str, /) -> tuple[int, ...]: ...

    def text_of(self, token: str, /) -> bytes: ...


@attrs.frozen
class Matcher:
    """Finds given texts in a text: the leftmost, and of several there the longest.

    The ids in `greedy` swallow the blanks that follow them.
    """

    ids: Mapping[str, int]
    greedy: frozenset[int] = frozenset()

    def split(self, text: str) -> list[str | int]:
        """The text in order, with ids in the place of what was found."""
        out: list[str | int] = []
        done = 0
        for first in self._firsts.finditer(text):
            i = first.start()
            found = self._longest(text, i) if i >= done else ""
            if not found:
                continue
            out += [text[done:i], self.ids[found]] if done < i else [self.ids[found]]
            done = i + len(found)
            if self.ids[found] in self.greedy:
                done = len(text) - len(text[done:].lstrip())
        return [*out, text[done:]] if done < len(text) else out

    def _longest(self, text: str, i: int) -> str:
        at_i = (text[i : i + n] for n in self._lengths[text[i]])
        return next((found for found in at_i if found in self.ids), "")

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """For each first character the lengths of the texts, the longest first."""
        pairs = sorted({(text[0], len(text)) for text in self.ids}, reverse=True)
        return {char: [n for _, n in group] for char, group in groupby(pairs, itemgetter(0))}

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        # Without texts: a pattern that matches nowhere.
        return re.compile("|".join(map(re.escape, self._lengths)) or r"(?!)")


@attrs.frozen(eq=False)
class Tokenizer:
    """Text to ids and back. Made by `load_tokenizer`; safe to share between threads."""

    vocab: Vocab
    coder: Coder
    model: str  # "bpe", "spm", "wordpiece" or "unigram"
    pre: str
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    sep_id: int | None
    eog_ids: frozenset[int]  # end a generation: a text's or a turn's end, by role or by name
    add_bos: bool
    add_eos: bool
    control: Matcher
    defined: Matcher

    @property
    def n_vocab(self) -> int:
        return len(self.vocab.tokens)

    def encode(
        self,
        text: Text,
        *,
        special: bool = False,
        bos: bool | None = None,
        eos: bool | None = None,
    ) -> list[int]:
        """The ids of a text; with `special`, the texts of control tokens become those tokens.

        `bos` and `eos` say whether these stand around the text; None: as the model wants it.
        """
        return self.encode_parts([(text, special)], bos=bos, eos=eos)

    def encode_parts(
        self,
        parts: Iterable[tuple[Text, bool]],
        *,
        bos: bool | None = None,
        eos: bool | None = None,
    ) -> list[int]:
        """The ids of one text given in parts, each with its own `special`.

        So a chat template's own words can carry control tokens while those of its users cannot;
        between the parts nothing is added and ordinary tokens may cross.
        """
        ids: list[int] = []
        encode = self._encode_piece
        for fragment in self._fragments(parts):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += [i for piece in self.coder.split(fragment) for i in encode(piece)]
        first = self._wanted("BOS", self.bos_id, self.add_bos if bos is None else bos)
        last = self._wanted("EOS", self.eos_id, self.add_eos if eos is None else eos)
        ids = ids if ids[:1] == first else first + ids
        return ids if ids[-1:] == last else ids + last

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of the ids; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], special: bool = False) -> bytes:
        """The bytes of the ids; control tokens only show with `special`.

        Where a text starts (after BOS; at the first id in a model that has no BOS), the space
        that `encode` put there is left out. Elsewhere ids may continue a text: it stays.
        """
        ids = list(ids)
        self.check_ids(ids)
        stream = StreamDecoder(self, special=special)
        return b"".join(map(stream.push_bytes, ids))

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes that a token adds to a text."""
        self.check_ids([token])
        text, kind = self.vocab.tokens[token], self.vocab.kinds[token]
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if kind in (CONTROL, UNKNOWN):
            return to_bytes(text) if special else b""
        return to_bytes(text) if kind == USER_DEFINED else self.coder.text_of(text)

    def token_text(self, token: int) -> str:
        """The entry in the vocabulary as it stands there."""
        self.check_ids([token])
        return self.vocab.tokens[token]

    def check_ids(self, ids: Iterable[object]) -> None:
        """Refuse what is no id of this vocabulary, with its position."""
        n = self.n_vocab
        for position, i in enumerate(ids):
            # A negative id would count from the end.
            if not isinstance(i, (int, np.integer)) or not 0 <= i < n:
                msg = "this is not a token id of the model"
                where = f"position {position}"
                raise TokenizerError(msg, where=where, expected=f"0 to {n - 1}", got=repr(i))

    def starts_text(self, token: int) -> bool:
        """Whether, at this first id, `encode` has put a space before the text."""
        return self.coder.space_prefix and self.bos_id in (None, token)

    @cached_property
    def _encode_piece(self) -> Callable[[str], tuple[int, ...]]:
        encode = self.coder.encode
        cached = lru_cache(CACHED_PIECES)(encode)  # words come again and again
        return lambda piece: cached(piece) if len(piece) <= CACHED_LENGTH else encode(piece)

    def _wanted(self, name: str, token: int | None, wanted: bool) -> list[int]:
        if wanted and token is None:
            msg = f"the model has no {name} token"
            raise TokenizerError(msg, where=self.vocab.where or None)
        return [token] if wanted and token is not None else []

    def _fragments(self, parts: Iterable[tuple[Text, bool]]) -> list[str | int]:
        """Ids of special tokens and the texts between them, joined over the parts."""
        joined: list[str | int] = []
        for part, special in parts:
            text = _checked(part)
            for piece in self.control.split(text) if special else [text]:
                if joined and isinstance(piece, str) and isinstance(joined[-1], str):
                    joined[-1] += piece
                else:
                    joined.append(piece)
        out: list[str | int] = []
        for fragment in joined:
            out += [fragment] if isinstance(fragment, int) else self.defined.split(fragment)
        return out


def _checked(text: Text) -> str:
    if isinstance(text, bytes):
        return text.decode("utf-8", "surrogateescape")
    try:
        to_bytes(text)
    except UnicodeEncodeError as error:
        msg = "the text holds half of a UTF-16 pair, which is no character"
        where, got = f"position {error.start}", repr(text[error.start])
        raise TokenizerError(msg, where=where, expected="Unicode text", got=got) from error
    return text
