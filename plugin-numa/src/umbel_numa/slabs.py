"""Memory that many tensors share, so that small ones lie in huge pages, too: they are read a
fifth faster there, and no tensor takes a huge page for its last few bytes.
"""

import attrs
import numpy as np

from umbel_numa.weights import fresh

SLAB = 32 << 20  # bytes taken from the system at once; what is not touched costs nothing
_ALIGN = 64


@attrs.define
class Slabs:
    """Hands out pieces one behind the other. A slab is free again when all of them are."""

    usage: str
    rest: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.uint8))

    def take(self, nbytes: int) -> np.ndarray:
        if nbytes >= SLAB // 2:
            return fresh(nbytes, self.usage)
        size = -(-nbytes // _ALIGN) * _ALIGN
        if self.rest.size < size:
            self.rest = fresh(SLAB, self.usage)
        piece, self.rest = self.rest[:nbytes], self.rest[size:]
        return piece
