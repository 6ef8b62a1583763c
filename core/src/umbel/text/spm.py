"""SentencePiece's byte-pair encoding ("llama"): merges by the score of what they make.

Reference: Kudo and Richardson, "SentencePiece" (2018). A character that no token covers is
spelt in byte tokens. A space is U+2581; one is put before a text, and before what follows a
special token, where the model says so.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from umbel.text.bpe import merge
from umbel.text.vocab import SPACE, Vocab, to_spaces


@attrs.frozen(eq=False)
class SentencePieces:
    """Text to ids by the scores of the tokens."""

    vocab: Vocab
    space_prefix: bool
    text_of = staticmethod(to_spaces)

    def split(self, text: str) -> list[str]:
        prefix = SPACE if self.space_prefix else ""
        return self.vocab.words(prefix + text.replace(" ", SPACE))

    def encode(self, piece: str) -> tuple[int, ...]:
        plain, ranks = self.vocab.plain, self._ranks

        def rank(left: str, right: str) -> int | None:
            i = plain.get(left + right)
            return None if i is None else ranks[i]

        out: list[int] = []
        for symbol in merge(list(piece), rank):
            out += [plain[symbol]] if symbol in plain else self.vocab.spell(symbol)
        return tuple(out)

    @cached_property
    def _ranks(self) -> list[int]:
        """For each id its place by score: tokens of equal score share one."""
        ranks: list[int] = np.unique(-self.vocab.scores, return_inverse=True)[1].tolist()
        return ranks
