"""Scratch memory of a split, laid out while it is lowered.

From the bottom: what one node needs beside its inputs and result, which the next node uses
again; above it what lasts: to the end of the split, or until a value is read for the last time.
The stream runs launches one after the other: so what is free for a later one is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from umbel_cann.heap import placed


@attrs.define
class Block:
    """A place for values that are read until the `until`th node."""

    address: int
    size: int
    until: int


@attrs.define(eq=False)
class Scratch:
    """Addresses from `place` on; with `above` unknown, at first, only sizes are right."""

    place: int = 0
    above: int = 0  # bytes that nodes need; what lasts lies above them
    peak: int = 0  # what they turned out to need
    lasting: int = 0  # bytes of what lasts
    _used: int = 0
    _blocks: list[Block] = attrs.field(factory=list)

    def begin(self) -> None:
        """What was taken for a node is free again."""
        self._used = 0

    def for_node(self, nbytes: int) -> int:
        address = self.place + self._used
        self._used += placed(nbytes)
        self.peak = max(self.peak, self._used)
        return address

    @contextmanager
    def again(self) -> Iterator[None]:
        """What is taken for a node in here is free at the end."""
        used = self._used
        yield
        self._used = used

    def for_all(self, nbytes: int) -> int:
        """To the end of the split."""
        address = self.place + self.above + self.lasting
        self.lasting += placed(nbytes)
        return address

    def between(self, nbytes: int, now: int, until: int) -> int:
        """From node `now` to node `until`, which reads it for the last time."""
        size = placed(nbytes)
        free = (b for b in self._blocks if b.until < now and b.size >= size)
        block = min(free, key=lambda b: b.size, default=None)
        if block is None:
            self._blocks.append(block := Block(self.for_all(nbytes), size, until))
        block.until = until
        return block.address
