"""The tokenizer of a model: text to ids and back, whatever kind of model it is.

Three rules hold for all of them:

* The texts of control tokens are ordinary text unless `special=True`. Those of user-defined
  tokens are always found, as the files mean it.
* At most one BOS opens a text: where BOS is to be added and the text's own first token already
  is BOS (a chat template wrote it, or a completion was given with it, and `special=True`), it is
  not added again. In the same way EOS at the end.
* A text may hold any bytes: given as `bytes`, or in a `str` as Python's surrogateescape writes
  them. Half of a UTF-16 pair is no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Protocol

import attrs

from umbel.errors import TokenizerError
from umbel.text.stream import StreamDecoder
from umbel.text.vocab import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Vocab, to_bytes

Text = str | bytes
_BLANK = " \t\n\v\f\r"


class Coder(Protocol):
    """One way of encoding: text without special tokens to ids, and a token to its text."""

    @property
    def space_prefix(self) -> bool:
        """Whether `encode` puts a space before a text: decoding takes it away again."""

    def encode(self, text: str, starts: bool) -> list[int]:
        """The ids; `starts` where nothing or a special token stands before the text."""

    def text_of(self, token: str) -> bytes: ...


@attrs.frozen
class Matcher:
    """Finds given texts in a text: the leftmost, and of several there the longest.

    `strip_left` and `strip_right` are ids that swallow the blanks beside them.
    """

    ids: Mapping[str, int]
    strip_left: frozenset[int] = frozenset()
    strip_right: frozenset[int] = frozenset()

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """For each first character the lengths of the texts, the longest first."""
        found: dict[str, set[int]] = {}
        for text in self.ids:
            found.setdefault(text[0], set()).add(len(text))
        return {char: sorted(lengths, reverse=True) for char, lengths in found.items()}

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        return re.compile("[" + "".join(map(re.escape, self._lengths)) + "]")

    def split(self, text: str) -> list[str | int]:
        """The text in order, the texts found replaced by their ids."""
        if not self.ids:
            return [text] if text else []
        out: list[str | int] = []
        done = 0
        for start in self._firsts.finditer(text):
            i = start.start()
            if i < done or (n := self._match(text, i)) == 0:
                continue
            token = self.ids[text[i : i + n]]
            before, done = text[done:i], i + n
            if token in self.strip_left:
                before = before.rstrip(_BLANK)
            if token in self.strip_right:
                done = len(text) - len(text[done:].lstrip(_BLANK))
            out += [before, token] if before else [token]
        return [*out, text[done:]] if done < len(text) else out

    def _match(self, text: str, i: int) -> int:
        lengths = (n for n in self._lengths[text[i]] if text[i : i + n] in self.ids)
        return next(lengths, 0)


@attrs.frozen(eq=False)
class Tokenizer:
    """Text to ids and back. Made by `load_tokenizer`; safe to share between threads."""

    vocab: Vocab
    coder: Coder
    model: str  # "bpe", "spm", "wordpiece" or "unigram"
    pre: str
    add_bos: bool
    add_eos: bool
    control: Matcher
    defined: Matcher

    @property
    def n_vocab(self) -> int:
        return len(self.vocab.tokens)

    @property
    def bos_id(self) -> int | None:
        return self.vocab.roles.get("bos")

    @property
    def eos_id(self) -> int | None:
        return self.vocab.roles.get("eos")

    @property
    def unk_id(self) -> int | None:
        return self.vocab.roles.get("unk")

    @property
    def pad_id(self) -> int | None:
        return self.vocab.roles.get("pad")

    @property
    def sep_id(self) -> int | None:
        return self.vocab.roles.get("sep")

    @property
    def eog_ids(self) -> frozenset[int]:
        """The ids that end a generation: a text's or a turn's end, by role or by name."""
        return self.vocab.ends

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
        starts = True
        for fragment in self._fragments(parts):
            starts_next = isinstance(fragment, int)
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self.coder.encode(fragment, starts)
            starts = starts_next
        first, last = self._wanted("bos", bos), self._wanted("eos", eos)
        if first is not None and ids[:1] != [first]:
            ids.insert(0, first)
        if last is not None and ids[-1:] != [last]:
            ids.append(last)
        return ids

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

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse what is no id of this vocabulary, with its position."""
        n = self.n_vocab
        for position, i in enumerate(ids):
            if not isinstance(i, Integral) or isinstance(i, bool) or not 0 <= i < n:
                msg = "this is not a token id of the model"
                where = f"position {position}"
                raise TokenizerError(msg, where=where, expected=f"0 to {n - 1}", got=repr(i))

    def starts_text(self, token: int) -> bool:
        """Whether, at this first id, `encode` has put a space before the text."""
        return self.coder.space_prefix and self.bos_id in (None, token)

    def _wanted(self, role: str, wanted: bool | None) -> int | None:
        if wanted is None:
            wanted = self.add_bos if role == "bos" else self.add_eos
        found = self.vocab.roles.get(role)
        if wanted and found is None:
            msg = f"the model has no {role.upper()} token"
            raise TokenizerError(msg, where=self.vocab.where or None)
        return found if wanted else None

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
