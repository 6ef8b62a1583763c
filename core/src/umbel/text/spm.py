"""SentencePiece's byte-pair encoding ("llama"): merges by the score of what they make.

Reference: Kudo and Richardson, "SentencePiece" (2018). A character that no token covers is
spelt in byte tokens. A space is U+2581; one is put before a text, and before what follows a
special token, where the model says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import attrs
import numpy as np

from umbel.text.bpe import WORDS, merge, remember
from umbel.text.pretokenizers import splitter
from umbel.text.vocab import SPACE, Vocab, to_bytes


@attrs.frozen(eq=False)
class SentencePieces:
    """Text to ids by the scores of the tokens."""

    vocab: Vocab
    space_prefix: bool

    def encode(self, text: str, starts: bool) -> list[int]:
        prefix = SPACE if starts and self.space_prefix else ""
        text = prefix + text.replace(" ", SPACE)
        pieces = splitter((WORDS,))(text) if self.vocab.words_are_apart else [text]
        encode = self._remembered
        return [i for piece in pieces for i in encode(piece)]

    def text_of(self, token: str) -> bytes:
        return to_bytes(token.replace(SPACE, " "))

    @cached_property
    def _ranks(self) -> list[int]:
        """For each id its place by score: tokens of equal score share one."""
        scores = self.vocab.scores
        assert scores is not None  # read_vocab was told to ask for them
        ranks: list[int] = np.unique(-scores, return_inverse=True)[1].tolist()
        return ranks

    @cached_property
    def _remembered(self) -> Callable[[str], tuple[int, ...]]:
        return remember(self._encode_piece)

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        plain, ranks = self.vocab.plain, self._ranks

        def rank(left: str, right: str) -> int | None:
            i = plain.get(left + right)
            return None if i is None else ranks[i]

        out: list[int] = []
        for symbol in merge(list(piece), rank):
            out += [plain[symbol]] if symbol in plain else self.vocab.spell(symbol)
        return tuple(out)
