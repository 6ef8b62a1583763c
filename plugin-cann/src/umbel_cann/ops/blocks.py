"""Attention that reads keys and values in blocks of a cache, through a table of these.

The lengths that the vendor's operator then asks for are arguments of its first phase: they are
all that the plan has room for, and the mask hides the rest. So nothing is made anew for a step.
Columns of the mask are as the table of cells has them, which ends with the step's own; they are
brought into the order of the blocks once for all layers. What a step has to be like for that,
and what the host writes for it, is in `paging.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.graph import Role, Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.memory import BLOCK
from umbel_cann.ops.rows import gather
from umbel_cann.views import View

if TYPE_CHECKING:
    from umbel_cann.ops.fusion import Reads

_WIDEST = 65535  # values of a cell


def cache_of(reads: Reads, to: Lowering, node: Tensor, t: Tensor) -> Tensor | None:
    """Of which `t` (S, Hkv, L, hd) is what was gathered, for this node alone."""
    rows, (sequences, heads, length, width) = t.storage, t.shape
    if rows.op is None or rows.op.name != "get_rows" or not reads.within((rows,), (node,)):
        return None
    cache, cells = rows.inputs
    size, wide = t.dtype.block_bytes, heads * width
    steps = zip(t.shape, t.strides, (length * wide, width, wide, 1), strict=True)
    turned = t.offset == 0 and all(n == 1 or step == many * size for n, step, many in steps)
    kept = cache.storage
    whole = turned and kept.role is Role.STATE and kept.shape == cache.shape
    whole = whole and cache.shape == (cache.shape[0], wide)
    known = to.laid is not None and cells.storage is to.laid.cells
    if not (whole and known and kept.dtype.name == "f16" and wide <= _WIDEST):
        return None
    rows_there = cache if to.laid is not None and to.laid.ahead else to.stored(cache)
    there = rows_there.shape[0] // BLOCK
    return cache if sequences * (length // BLOCK) <= there else None


def of(to: Lowering, cache: Tensor) -> View:
    """A cache as whole blocks."""
    rows = to.stored(cache)
    count = rows.shape[0] // BLOCK
    return rows.part(0, 0, count * BLOCK).reshaped(count, BLOCK, rows.shape[1])


def ordered(to: Lowering, mask: Tensor) -> View:
    """A mask (S, 1, T, L) with its columns in the order of the blocks."""
    sequences, _, tokens, length = mask.shape
    given = to.view(mask)

    def fill(out: View) -> None:
        assert to.laid is not None
        columns = to.dense(given.permuted(0, 3, 1, 2)).reshaped(sequences * length, tokens)
        made = out.reshaped(*columns.shape)
        if tokens > 1:
            made = to.temporary(columns.shape, out.type)
        gather(to, columns, to.laid.order, made)
        if tokens > 1:
            turned = made.reshaped(sequences, length, 1, tokens).permuted(0, 2, 3, 1)
            to.emit("InplaceCopy", out, turned)

    return to.once((mask, "ordered"), mask.shape, given.type, fill)
