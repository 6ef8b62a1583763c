"""Memory for state. Where threads are on several nodes, a cache's heads are dealt over them.

A cache has a row for each cell with the keys (or values) of all heads side by side, so that no
page belongs to one head. The first attention that is compiled says how many there are, and then
each head gets an area of its own on the node whose threads attend to it. Who reads or writes
the buffer still sees rows.
"""

from __future__ import annotations

import attrs
import numpy as np
from umbel.hookspecs import Buffer
from umbel.host.memory import HostBuffer

from umbel_numa.pages import Binder, fresh, page_size, whole_pages


@attrs.define(eq=False)
class StateBuffer:
    """One or more states by rows; or a cache by heads."""

    plain: HostBuffer  # the rows, or the areas of all heads
    numbers: tuple[int, ...]  # of the nodes, by the kernel
    binder: Binder
    heads: int = 0  # areas, when dealt
    apart: int = 0  # bytes from one to the next
    used: int = 0  # bytes in front that were written before
    fixed: bool = False  # a program has its address
    _areas: np.ndarray | None = None  # (heads, cells, bytes of a head)

    @property
    def nbytes(self) -> int:
        return self.plain.nbytes

    @property
    def handle(self) -> int:
        return self.plain.handle

    def deal(self, cells: int, heads: int) -> None:
        """From now on by heads. Those of a node lie side by side."""
        rows, size = self.plain.memory, self.nbytes // (cells * heads)
        self.apart = whole_pages(cells * size)
        memory = fresh(heads * self.apart, "state", page_size())
        self.binder.room.promise(memory)
        self.heads = heads
        for k, number in enumerate(self.numbers):
            first, end = self._heads_of(k)
            self.binder.bind(memory[first * self.apart : end * self.apart], number)
        whole = memory.reshape(heads, self.apart)[:, : cells * size]
        self._areas = whole.reshape(heads, cells, size)  # no copy
        self.plain = HostBuffer(memory)
        before = -(-self.used // (size * heads)) * size * heads
        self.write(0, rows[:before])

    def areas(self) -> list[tuple[int, int, int]]:
        """Of each head of a dealt cache the kernel's number of its node, its address, its
        bytes."""
        nodes, size = len(self.numbers), 0 if self._areas is None else self._areas[0].size
        owners = [k for k in range(nodes) for _ in range(*self._heads_of(k))]
        return [
            (self.numbers[k], self.handle + head * self.apart, size)
            for head, k in enumerate(owners)
        ]

    def _heads_of(self, node: int) -> tuple[int, int]:
        """Those from and to which are a node's, as un_share cuts them."""
        nodes = len(self.numbers)
        return self.heads * node // nodes, self.heads * (node + 1) // nodes

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        if self._areas is None:
            return self.plain.read(offset, nbytes)
        first, rows = self._rows(offset, nbytes)
        return rows.reshape(-1)[offset - first : offset - first + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if self._areas is None:
            self.used = max(self.used, offset + raw.size)
            self.plain.write(offset, raw)
            return
        first, rows = self._rows(offset, raw.size)
        rows.reshape(-1)[offset - first : offset - first + raw.size] = raw
        cell = first // rows[0].size if len(rows) else 0
        self._areas[:, cell : cell + len(rows)] = rows.transpose(1, 0, 2)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        if self._areas is None:
            self.fixed = True
            return self.plain.map(mode)
        msg = "a cache that is dealt over nodes has no bytes in a row"
        raise RuntimeError(msg)

    def _rows(self, offset: int, nbytes: int) -> tuple[int, np.ndarray]:
        """Where the first row begins that these bytes touch, and a copy of all those rows:
        (cells, heads, bytes of a head)."""
        assert self._areas is not None
        row = self.heads * self._areas.shape[2]
        first, end = offset // row, -(-(offset + nbytes) // row)
        rows = np.ascontiguousarray(self._areas[:, first:end].transpose(1, 0, 2))
        return first * row, rows
