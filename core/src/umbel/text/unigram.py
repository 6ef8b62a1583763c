"""SentencePiece's unigram model ("t5"): the most probable way to cut a text into tokens.

Reference: Kudo, "Subword Regularization" (2018); the search is Viterbi's. A character that is
no token costs ten more than the rarest token.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from itertools import pairwise

import attrs

from umbel.text.charsmap import CharsMap
from umbel.text.vocab import NORMAL, SPACE, USER_DEFINED, Vocab, to_bytes, to_spaces

UNKNOWN_COST = 10.0


@attrs.frozen(eq=False)
class Unigram:
    """Text to ids by the greatest sum of scores."""

    vocab: Vocab
    charsmap: CharsMap | None
    space_prefix: bool
    merge_spaces: bool
    text_of = staticmethod(to_spaces)

    def split(self, text: str) -> list[str]:
        data = to_bytes(text)
        text = (
            self.charsmap.normalise(data) if self.charsmap else data.decode("utf-8", "replace")
        )
        if self.merge_spaces:
            text = re.sub(" +", " ", text).lstrip(" ").rstrip(" " + SPACE)
        prefix = SPACE if text and self.space_prefix else ""
        return self.vocab.words(prefix + text.replace(" ", SPACE))

    def encode(self, piece: str) -> tuple[int, ...]:
        out: list[int] = []
        for token in self._best(piece):
            ids = [self.vocab.ids[token]] if token in self._scores else self.vocab.spell(token)
            # A run of unknown characters is one token.
            out += ids if ids != [self.vocab.roles.get("unk")] or ids != out[-1:] else []
        return tuple(out)

    @cached_property
    def _scores(self) -> dict[str, float]:
        tokens = self.vocab.of_kind(NORMAL)
        scores = self.vocab.scores[list(tokens.values())].tolist()
        own = dict.fromkeys(self.vocab.of_kind(USER_DEFINED), 0.0)
        return dict(zip(tokens, scores, strict=True)) | own

    @cached_property
    def _limits(self) -> tuple[int, float]:
        """The length of the longest token, and the score of an unknown character."""
        rarest = min(self._scores.values(), default=0.0)
        return max(map(len, self._scores), default=1), rarest - UNKNOWN_COST

    def _best(self, text: str) -> list[str]:
        scores, n = self._scores, len(text)
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
