"""Byte-pair encoding: GPT-2's, over bytes, and Gemma 4's, over characters with byte tokens.

Reference: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units"
(2016); the table of stand-ins for bytes is that of GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

import attrs

from umbel.text.pretokenizers import PreTokenizer, Splitter, splitter
from umbel.text.vocab import SPACE, Vocab, index, to_bytes, to_spaces

_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [b for b in range(256) if b not in _SHOWN]
# A visible character for each byte: itself where it is one, else one from U+0100 on.
BYTE_TO_CHAR = {b: chr(b) for b in _SHOWN} | {b: chr(256 + i) for i, b in enumerate(_HIDDEN)}
CHAR_TO_BYTE = {char: bytes([b]) for b, char in BYTE_TO_CHAR.items()}


def merge(symbols: list[str], rank: Callable[[str, str], int | None]) -> list[str]:
    """Join neighbours until no pair has a rank: the lowest first, of equal ones the leftmost.

    Takes n log n steps: a heap holds the pairs, and a linked list the symbols that still live.
    """
    n = len(symbols)
    symbols = [*symbols]
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
    merges: list[str]  # "left right", the first one first
    space_prefix: bool = False

    def split(self, text: str) -> Iterable[str]:
        return self._cut(text.replace(" ", SPACE) if self.pre.raw else text)

    def encode(self, piece: str) -> tuple[int, ...]:
        raw, plain, ranks = self.pre.raw, self.vocab.plain, self._ranks
        word = piece if raw else "".join(BYTE_TO_CHAR[b] for b in to_bytes(piece))
        whole = self.pre.whole_words or (raw and not piece.strip("\n"))
        if whole and word in plain:
            return (plain[word],)
        out = []
        for symbol in merge(list(word), lambda a, b: ranks.get(f"{a} {b}")):
            if symbol in plain:
                out.append(plain[symbol])
            else:
                out += self.vocab.spell(symbol) if raw else map(self._byte, symbol)
        return tuple(out)

    def text_of(self, token: str) -> bytes:
        if self.pre.raw:
            return to_spaces(token)
        return b"".join(CHAR_TO_BYTE.get(char) or to_bytes(char) for char in token)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return index(self.merges)

    @cached_property
    def _cut(self) -> Splitter:
        if not self.pre.raw or re.search(f"[^{SPACE}\n] {SPACE}", "\n".join(self.merges)):
            return splitter(self.pre.patterns)
        # No merge goes on past a word into the next space: a line may be cut there.
        return splitter((*self.pre.patterns, f"{SPACE}+[^{SPACE}]*"))

    def _byte(self, char: str) -> int:
        found = self.vocab.plain.get(char)
        return self.vocab.unknown(CHAR_TO_BYTE[char]) if found is None else found
