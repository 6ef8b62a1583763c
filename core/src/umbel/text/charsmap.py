"""SentencePiece's `precompiled_charsmap`: normalisation rules in a double-array trie.

Layout: the size of the trie in bytes (u32), the trie, and the replacements, each ended by a
zero byte. Reference: SentencePiece's normalizer and the darts-clone library (Yata). A unit has
a label in bits 0-7, "has a value" in bit 8, and an offset to its children in the bits from 10
on, times 256 where bit 9 is set; a value stands in the low 31 bits of the child for label 0.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from umbel.errors import TokenizerError

_LABEL, _VALUE = 0x800000FF, 0x7FFFFFFF


@attrs.frozen
class CharsMap:
    """Replaces, at each place of a text, the longest sequence that has a rule."""

    trie: bytes
    replacements: bytes
    where: str

    @classmethod
    def parse(cls, data: bytes, where: str) -> CharsMap:
        size = int.from_bytes(data[:4], "little")
        if size % 4 or not 4 <= size < len(data) - 4 or data[-1]:
            msg = "the normalisation rules (precompiled_charsmap) are malformed"
            got = f"a trie of {size} bytes in {len(data)} bytes"
            raise TokenizerError(msg, where=where or None, got=got)
        return cls(data[4 : 4 + size], data[4 + size :], where)

    def normalise(self, text: bytes) -> str:
        out, i = [], 0
        try:
            while i < len(text):
                n, replacement = self._longest(text, i)
                out.append(replacement)
                i += n
        except (IndexError, ValueError) as error:
            msg = "the normalisation rules (precompiled_charsmap) point outside of themselves"
            raise TokenizerError(msg, where=self.where or None, got=error) from error
        return b"".join(out).decode("utf-8", "replace")

    def _longest(self, text: bytes, start: int) -> tuple[int, bytes]:
        """The length of what the longest rule at `start` replaces, and by what.

        Without a rule that is the character itself.
        """
        units, length, value = self._units, 0, 0
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

    @cached_property
    def _units(self) -> list[int]:
        units: list[int] = np.frombuffer(self.trie, "<u4").tolist()
        return units


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
