"""Whether the cells of a step are whole blocks, and what attention then is told of them.

The core gives each sequence blocks of its own, while there are whole ones. But cells are cells:
a fork goes on elsewhere within a block, a shifted context begins within one, and what is left
when memory ends is no block. In such a step rows are gathered, by another program.

Attention reads all of a block. What its sequence has not written there yet is zero, or what
another one left: the mask hides it, if it is finite. So after a fault rows are gathered.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from umbel.graph import Role, Tensor
from umbel.hookspecs import SplitGraph

from umbel_cann.heap import Region, placed
from umbel_cann.memory import BLOCK, NpuMemory
from umbel_cann.runtime import Npu
from umbel_cann.states import integers
from umbel_cann.views import INT32, View, contiguous


@attrs.frozen
class Blocks:
    """Of each sequence of a step."""

    table: np.ndarray  # (S, L / BLOCK) int32: which blocks; those not in use are block 0
    order: np.ndarray  # (S, L) int32: which of S * L columns of the mask stands for which cell

    @property
    def rows(self) -> int:
        """How many there are to be in a cache: as many as the lengths tell, where that is no
        more than a block for each sequence beyond those in use; else those in use will do."""
        sequences, blocks = self.table.shape
        used = len({0, *self.table.flat})
        return sequences * blocks * BLOCK if sequences * blocks <= used + sequences else 0


@attrs.frozen(eq=False)
class Laid:
    """Where a program reads them."""

    cells: Tensor  # (S, L): the input that tells of them
    region: Region
    ahead: bool = False  # nothing is run: caches count as if they had grown to the end

    @classmethod
    def new(cls, memory: NpuMemory, cells: Tensor, *, ahead: bool = False) -> Laid:
        nbytes = placed(cells.nbytes // BLOCK) + cells.nbytes
        return cls(cells, memory.take(nbytes, 0, "tables of blocks"), ahead)

    @property
    def table(self) -> View:
        sequences, length = self.cells.shape
        return _integers((sequences, length // BLOCK), self.region.address)

    @property
    def order(self) -> View:
        return _integers((self.cells.size,), self.region.address + placed(self.table.size * 4))

    def put(self, npu: Npu, found: Blocks) -> None:
        """With the inputs of the step: both in one copy."""
        npu.put(self.table.start, found.table, self.region)
        npu.put(self.order.start, found.order, self.region)


def _integers(shape: tuple[int, ...], address: int) -> View:
    size = int(np.prod(shape))
    return View(INT32, shape, contiguous(shape), address, elements=size)


@attrs.frozen(eq=False)
class Cells:
    """The cells that a split gathers, as the host writes them for each step."""

    tensor: Tensor
    cache: Tensor  # one of those that they are gathered from
    integers: Callable[[], np.ndarray | None]

    @classmethod
    def of(cls, graph: SplitGraph) -> Cells | None:
        for node in graph.nodes:
            if node.op and node.op.name == "get_rows":
                rows, ids = node.inputs
                cache, given = rows.storage, ids.storage
                held = cache.role is Role.STATE and given.role is Role.INPUT
                held = held and cache.dtype.name == "f16"
                if held and len(ids.shape) == 2 and ids.shape[1] % BLOCK == 0:
                    written = integers(ids.storage, graph.slots)
                    return cls(ids.storage, rows.storage, written)
        return None

    def blocks(self) -> Blocks | None:
        """None where some cells are not in blocks."""
        known = self.integers()
        return None if known is None else in_blocks(known.reshape(self.tensor.shape))


def in_blocks(cells: np.ndarray) -> Blocks | None:
    """Of cells (S, L), of which the first of a sequence that are 0 stand for none, as do the
    last ones: those that follow are blocks, of which the last may be begun."""
    sequences, length = cells.shape
    first = (cells != 0).argmax(axis=1).astype(np.int32)
    turned = (first[:, None] + np.arange(length, dtype=np.int32)) % np.int32(length)
    blocks = np.take_along_axis(cells, turned, 1).reshape(sequences, -1, BLOCK)
    begins = blocks[..., 0]
    whole = (blocks == begins[..., None] + np.arange(BLOCK, dtype=np.int32)) | (blocks == 0)
    if not whole.all() or (begins % BLOCK).any():
        return None
    order = turned + np.arange(sequences, dtype=np.int32)[:, None] * np.int32(length)
    return Blocks(begins // BLOCK, order)
