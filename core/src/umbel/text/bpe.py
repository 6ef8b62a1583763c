"""Byte-pair encoding: GPT-2's, over bytes, and Gemma 4's, over characters with byte tokens.

Reference: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016);
the table of stand-ins for bytes is that of GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush

import attrs
import regex

from umbel.text.pretokenizers import PreTokenizer, Splitter, splitter
from umbel.text.vocab import SPACE, Vocab, to_bytes

CACHED_PIECES = 1 << 15
CACHED_LENGTH = 64  # longer pieces do not come again
WORDS = f"{SPACE}+[^{SPACE}]*"


def _stand_ins() -> dict[int, str]:
    """A visible character for each byte: itself where it is printable, else one from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


BYTE_TO_CHAR = _stand_ins()
CHAR_TO_BYTE = {char: bytes([b]) for b, char in BYTE_TO_CHAR.items()}


def merge(symbols: list[str], rank: Callable[[str, str], int | None]) -> list[str]:
    """Join neighbours, those of lowest rank first, of equal ones the leftmost, until none is left.

    Takes n log n steps: a heap holds the pairs, and a linked list the symbols that still live.
    """
    n = len(symbols)
    symbols = [*symbols]
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    pair_ranks: list[int | None] = [rank(a, b) for a, b in zip(symbols, symbols[1:])]
    pair_ranks.append(None)
    heap = [r * n + i for i, r in enumerate(pair_ranks) if r is not None]
    heapify(heap)
    while heap:
        r, i = divmod(heappop(heap), n)
        if pair_ranks[i] != r:
            continue  # one of the two has been merged with another
        right = after[i]
        symbols[i] += symbols[right]
        symbols[right], pair_ranks[right] = "", None
        after[i] = after[right]
        if after[i] < n:
            before[after[i]] = i
        for left in (before[i], i):
            if left < 0:
                continue
            k = after[left]
            pair_ranks[left] = new = rank(symbols[left], symbols[k]) if k < n else None
            if new is not None:
                heappush(heap, new * n + left)
    return [symbol for symbol in symbols if symbol]


def remember(encode: Callable[[str], tuple[int, ...]]) -> Callable[[str], tuple[int, ...]]:
    """`encode` with the results for the last short pieces kept: words come again and again."""
    cached = lru_cache(CACHED_PIECES)(encode)
    return lambda piece: cached(piece) if len(piece) <= CACHED_LENGTH else encode(piece)


@attrs.frozen(eq=False)
class BytePairs:
    """Text to ids by an ordered list of merges."""

    vocab: Vocab
    pre: PreTokenizer
    merges: list[str]  # "left right", the first one first
    space_prefix: bool = False

    def encode(self, text: str, starts: bool) -> list[int]:
        if self.pre.raw:
            text = text.replace(" ", SPACE)
        encode = self._remembered
        return [i for piece in self._split(text) for i in encode(piece)]

    def text_of(self, token: str) -> bytes:
        if self.pre.raw:
            return to_bytes(token.replace(SPACE, " "))
        return b"".join(CHAR_TO_BYTE.get(char) or to_bytes(char) for char in token)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        n = len(self.merges)  # of equal merges the first counts
        return dict(zip(reversed(self.merges), range(n - 1, -1, -1), strict=True))

    @cached_property
    def _split(self) -> Splitter:
        if not self.pre.raw or re.search(f"[^{SPACE}\n] {SPACE}", "\n".join(self.merges)):
            return splitter(self.pre.patterns)
        # No merge goes on past a word into the next space: a line may be cut there.
        return splitter((*self.pre.patterns, WORDS))

    @cached_property
    def _remembered(self) -> Callable[[str], tuple[int, ...]]:
        return remember(self._encode_piece)

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        raw, plain = self.pre.raw, self.vocab.plain
        word = piece if raw else "".join(BYTE_TO_CHAR[b] for b in to_bytes(piece))
        whole = self.pre.whole_words or (raw and not piece.strip("\n"))
        if whole and word in plain:
            return (plain[word],)
        ranks, out = self._ranks, []
        for symbol in merge(list(word), lambda a, b: ranks.get(f"{a} {b}")):
            if symbol in plain:
                out.append(plain[symbol])
            elif raw:
                out += self.vocab.spell(symbol)
            else:
                out += [self._byte(char) for char in symbol]
        return tuple(out)

    def _byte(self, char: str) -> int:
        found = self.vocab.plain.get(char)
        return self.vocab.unknown(CHAR_TO_BYTE[char]) if found is None else found


@attrs.frozen(eq=False)
class SpacedWords:
    """The model "whitespace": byte pairs within words; the spaces between them are dropped."""

    inner: BytePairs
    lower: bool
    space_prefix: bool = False

    def encode(self, text: str, starts: bool) -> list[int]:
        words = regex.findall(r"\S+", text.lower() if self.lower else text)
        return [i for word in words for i in self.inner.encode(word, starts)]

    def text_of(self, token: str) -> bytes:
        return to_bytes(token)
