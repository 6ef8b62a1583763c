"""SentencePiece's unigram model ("t5"): the most probable way to cut a text into tokens.

Reference: Kudo, "Subword Regularization" (2018); the search is Viterbi's. A character that is no
token costs ten more than the rarest token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cached_property

import attrs

from umbel.text.bpe import WORDS, remember
from umbel.text.charsmap import CharsMap
from umbel.text.pretokenizers import splitter
from umbel.text.vocab import NORMAL, SPACE, USER_DEFINED, Vocab, to_bytes

UNKNOWN_COST = 10.0


@attrs.frozen(eq=False)
class Unigram:
    """Text to ids by the greatest sum of scores."""

    vocab: Vocab
    charsmap: CharsMap | None
    space_prefix: bool
    merge_spaces: bool

    def encode(self, text: str, starts: bool) -> list[int]:
        text = self.normalise(text)
        pieces = splitter((WORDS,))(text) if self.vocab.words_are_apart else [text]
        found = [i for piece in pieces for i in self._remembered(piece)]
        unknown = self.vocab.roles.get("unk")
        # A run of unknown characters is one token.
        return [i for k, i in enumerate(found) if k == 0 or not i == found[k - 1] == unknown]

    def text_of(self, token: str) -> bytes:
        return to_bytes(token.replace(SPACE, " "))

    def normalise(self, text: str) -> str:
        data = to_bytes(text)
        text = (
            self.charsmap.normalise(data) if self.charsmap else data.decode("utf-8", "replace")
        )
        if self.merge_spaces:
            text = re.sub(" +", " ", text).strip(" ")
        prefix = SPACE if text and self.space_prefix else ""
        return prefix + text.replace(" ", SPACE)

    @cached_property
    def _scores(self) -> dict[str, float]:
        scores = self.vocab.scores
        assert scores is not None  # read_vocab was told to ask for them
        tokens = self.vocab.of_kind(NORMAL)
        known = dict(zip(tokens, scores[list(tokens.values())].tolist(), strict=True))
        return known | dict.fromkeys(self.vocab.of_kind(USER_DEFINED), 0.0)

    @cached_property
    def _unknown_score(self) -> float:
        return min(self._scores.values(), default=0.0) - UNKNOWN_COST

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._scores), default=1)

    @cached_property
    def _remembered(self) -> Callable[[str], tuple[int, ...]]:
        return remember(self._encode_piece)

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        out: list[int] = []
        for token in self._best(piece):
            known = token in self._scores
            out += [self.vocab.ids[token]] if known else self.vocab.spell(token)
        return tuple(out)

    def _best(self, text: str) -> list[str]:
        totals, starts = [0.0] + [-math.inf] * len(text), [0] * (len(text) + 1)
        for i in range(len(text)):
            for end, score in self._matches(text, i):
                if (total := totals[i] + score) > totals[end]:
                    totals[end], starts[end] = total, i
        cuts = [len(text)]
        while cuts[-1]:
            cuts.append(starts[cuts[-1]])
        return [text[a:b] for b, a in zip(cuts, cuts[1:])][::-1]

    def _matches(self, text: str, start: int) -> Iterator[tuple[int, float]]:
        """The tokens that start here: where each ends, and its score."""
        scores, first = self._scores, start + 1
        yield first, scores.get(text[start], self._unknown_score)
        for end in range(first + 1, min(len(text), start + self._longest) + 1):
            if (score := scores.get(text[start:end])) is not None:
                yield end, score
