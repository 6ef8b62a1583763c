"""Memory that many tensors share, so that small ones lie in huge pages, too: they are read a
fifth faster there, and no tensor takes a huge page for its last few bytes.
"""

from __future__ import annotations

import weakref

import attrs
import numpy as np

from umbel_numa.pages import Binder, page_size
from umbel_numa.topology import ANYWHERE

SLAB = 32 << 20  # bytes taken from the system at once; what is not touched costs nothing
_LINE = 64


@attrs.define
class _Slab:
    """One that is not full. What its pieces are views on is kept by them alone."""

    whole: weakref.ref[np.ndarray]
    start: int  # of what is left
    end: int


@attrs.define
class Slabs:
    """Hands out pieces one behind the other. A slab is free again when all of them are."""

    binder: Binder
    _last: dict[tuple[str, int], _Slab] = attrs.field(factory=dict)

    def take(self, nbytes: int, usage: str, number: int = ANYWHERE) -> np.ndarray:
        """Memory on that node of the kernel's; no page there belongs to two pieces, so that
        each can be asked where it lies."""
        if nbytes >= SLAB // 2:
            return self.binder.fresh(nbytes, usage, number)
        align = _LINE if number == ANYWHERE else page_size()
        size = -(-nbytes // align) * align
        slab = self._last.get((usage, number))
        whole = slab.whole() if slab and slab.start + size <= slab.end else None
        if slab is None or whole is None:
            memory = self.binder.fresh(SLAB, usage, number)
            whole = memory.base
            assert isinstance(whole, np.ndarray)
            start = memory.ctypes.data - whole.ctypes.data
            slab = self._last[usage, number] = _Slab(weakref.ref(whole), start, start + SLAB)
        piece = whole[slab.start : slab.start + nbytes]
        slab.start += size
        return piece
