"""Byte-pair encoding: neighbouring symbols are merged, the pair of lowest rank first.

`BytePairs` takes the ranks from a list of merges: GPT-2's works on bytes, Gemma 4's on
characters. `SentencePieces` ("llama") takes them from the scores of what the merges make.

References: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units"
(2016); Radford et al., GPT-2 (2019), for the stand-ins for bytes; Kudo and Richardson,
"SentencePiece" (2018).
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise

import attrs

from umbel.text.pretokenizers import PreTokenizer
from umbel.text.vocab import SPACE, Vocab, to_bytes, to_spaces

_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [b for b in range(256) if b not in _SHOWN]
# A visible character for each byte: itself where it is one, else one from U+0100 on.
BYTE_TO_CHAR = {b: chr(b) for b in _SHOWN} | {b: chr(256 + i) for i, b in enumerate(_HIDDEN)}
CHAR_TO_BYTE = {char: bytes([b]) for b, char in BYTE_TO_CHAR.items()}


def merge(symbols: list[str], rank: Callable[[str, str], int | None]) -> list[str]:
    """Join neighbours until no pair has a rank: the lowest first, of equal ones the leftmost.

    Takes n log n steps: a heap holds the pairs, and a linked list the symbols that still live.
    The list that is given gets used up.
    """
    n = len(symbols)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    ranks = [*(rank(a, b) for a, b in pairwise(symbols)), None]
    heap = [r * n + i for i, r in enumerate(ranks) if r is not None]
    heapify(heap)
    while heap:
        r, i = divmod(heappop(heap), n)
        if ranks[i] != r:
            continue  # one of the two has been merged with another
        right = after[i]
        symbols[i] += symbols[right]
        symbols[right], ranks[right] = "", None
        after[i] = after[right]
        if after[i] < n:
            before[after[i]] = i
        for left in (before[i], i) if before[i] >= 0 else (i,):
            k = after[left]
            ranks[left] = new = rank(symbols[left], symbols[k]) if k < n else None
            if new is not None:
                heappush(heap, new * n + left)
    return [symbol for symbol in symbols if symbol]


@attrs.frozen(eq=False)
class BytePairs:
    """Text to ids by an ordered list of merges."""

    vocab: Vocab
    pre: PreTokenizer
    ranks: dict[str, int]  # of "left right"
    space_prefix: bool = False

    def split(self, text: str) -> list[str]:
        return self.pre.split(text.replace(" ", SPACE) if self.pre.raw else text)

    def encode(self, piece: str) -> tuple[int, ...]:
        raw, plain, ranks = self.pre.raw, self.vocab.plain, self.ranks
        word = piece if raw else "".join(BYTE_TO_CHAR[b] for b in to_bytes(piece))
        whole = self.pre.whole_words or (raw and not piece.strip("\n"))
        if whole and word in plain:
            return (plain[word],)
        out: list[int] = []
        for symbol in merge(list(word), lambda a, b: ranks.get(f"{a} {b}")):
            for part in [symbol] if symbol in plain else symbol:
                out += [plain[part]] if part in plain else self.vocab.spell(self.text_of(part))
        return tuple(out)

    def text_of(self, token: str) -> bytes:
        if self.pre.raw:
            return to_spaces(token)
        return b"".join(CHAR_TO_BYTE.get(char) or to_bytes(char) for char in token)


@attrs.frozen(eq=False)
class SentencePieces:
    """Text to ids by the scores of the tokens; what no token covers is spelt in byte tokens.

    A space is U+2581; one is put before a text, and before what follows a special token, where
    the model says so.
    """

    vocab: Vocab
    ranks: dict[str, int]  # of what a merge makes
    space_prefix: bool
    text_of = staticmethod(to_spaces)

    def split(self, text: str) -> list[str]:
        prefix = SPACE if self.space_prefix else ""
        return self.vocab.word.findall(prefix + text.replace(" ", SPACE))

    def encode(self, piece: str) -> tuple[int, ...]:
        plain, ranks = self.vocab.plain, self.ranks
        out: list[int] = []
        for symbol in merge(list(piece), lambda a, b: ranks.get(a + b)):
            out += [plain[symbol]] if symbol in plain else self.vocab.spell(to_bytes(symbol))
        return tuple(out)
