"""SentencePiece's unigram model ("t5"): the most probable way to cut a text into tokens.

`Unigram` searches with Viterbi's algorithm; a character that is no token costs ten more than
the rarest token. `CharsMap` normalises the text before, by the rules that the file holds.

References: Kudo, "Subword Regularization" (2018); SentencePiece's normalizer and the
darts-clone library (Yata) for the layout of the rules.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np

from umbel.errors import TokenizerError
from umbel.text.vocab import NORMAL, SPACE, Vocab, to_bytes, to_spaces

UNKNOWN_COST = 10.0
_LABEL, _VALUE = 0x800000FF, 0x7FFFFFFF


@attrs.frozen(eq=False)
class Unigram:
    """Text to ids by the greatest sum of scores."""

    vocab: Vocab
    scores: list[float]
    charsmap: CharsMap | None
    space_prefix: bool
    merge_spaces: bool
    text_of = staticmethod(to_spaces)

    def split(self, text: str) -> list[str]:
        if self.charsmap:
            text = self.charsmap.normalise(to_bytes(text))
        if self.merge_spaces:
            text = re.sub(" +", " ", text).lstrip(" ").rstrip(" " + SPACE)
        prefix = SPACE if text and self.space_prefix else ""
        return self.vocab.word.findall(prefix + text.replace(" ", SPACE))

    def encode(self, piece: str) -> tuple[int, ...]:
        out: list[int] = []
        for token in self._best(piece):
            known = token in self._token_scores
            ids = [self.vocab.ids[token]] if known else self.vocab.spell(to_bytes(token))
            # A run of unknown characters is one token.
            if ids != out[-1:] or ids != [self.vocab.roles.get("unk")]:
                out += ids
        return tuple(out)

    @cached_property
    def _token_scores(self) -> dict[str, float]:
        return {text: self.scores[i] for text, i in self.vocab.of_kind(NORMAL).items()}

    @cached_property
    def _limits(self) -> tuple[int, float]:
        """The length of the longest token, and the score of an unknown character."""
        rarest = min(self._token_scores.values(), default=0.0)
        return max(map(len, self._token_scores), default=1), rarest - UNKNOWN_COST

    def _best(self, text: str) -> list[str]:
        scores, n = self._token_scores, len(text)
        longest, unknown = self._limits
        totals, starts = [0.0] + [-math.inf] * n, [0] * (n + 1)
        for i in range(n):
            for end in range(i + 1, min(n, i + longest) + 1):
                score = scores.get(text[i:end], unknown if end == i + 1 else -math.inf)
                if totals[i] + score > totals[end]:
                    totals[end], starts[end] = totals[i] + score, i
        cuts = [n]
        while cuts[-1]:
            cuts.append(starts[cuts[-1]])
        return [text[start:end] for start, end in pairwise(reversed(cuts))]


@attrs.frozen
class CharsMap:
    """SentencePiece's `precompiled_charsmap`: normalisation rules in a double-array trie.

    Replaces, at each place of a text, the longest sequence that has a rule. A unit of the trie
    has a label in bits 0-7, "has a value" in bit 8, and an offset to its children in the bits
    from 10 on, times 256 where bit 9 is set; a value stands in the low 31 bits of the child for
    label 0, and is the place of a replacement, which a zero byte ends.
    """

    units: list[int]
    replacements: bytes
    where: str

    @classmethod
    def parse(cls, data: bytes, where: str) -> CharsMap:
        """From the size of the trie in bytes (u32), the trie, and the replacements."""
        size = int.from_bytes(data[:4], "little")
        if size % 4 or not 4 <= size < len(data) - 4 or data[-1]:
            msg = "the normalisation rules (precompiled_charsmap) are malformed"
            got = f"a trie of {size} bytes in {len(data)} bytes"
            raise TokenizerError(msg, where=where, got=got)
        units = np.frombuffer(data, "<u4", size // 4, offset=4)
        return cls(units.tolist(), data[4 + size :], where)

    def normalise(self, text: bytes) -> str:
        out, i = [], 0
        try:
            while i < len(text):
                n, replacement = self._longest(text, i)
                out.append(replacement)
                i += n
        except (IndexError, ValueError) as error:
            msg = "the normalisation rules (precompiled_charsmap) point outside of themselves"
            raise TokenizerError(msg, where=self.where, got=error) from error
        return b"".join(out).decode("utf-8", "replace")

    def _longest(self, text: bytes, start: int) -> tuple[int, bytes]:
        """The length of what the longest rule at `start` replaces, and by what.

        Without a rule that is the character itself.
        """
        units, length, value = self.units, 0, 0
        node = _offset(units[0])
        for i in range(start, len(text)):
            node ^= text[i]
            unit = units[node]
            if text[i] == 0 or unit & _LABEL != text[i]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                length, value = i + 1 - start, units[node] & _VALUE
        if length:
            return length, self.replacements[value : self.replacements.index(0, value)]
        lead = text[start]
        length = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return length, text[start : start + length]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
