"""Where the memory of weights lies, and where it shall lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs
import numpy as np

from umbel_numa.pages import where


@attrs.frozen(eq=False)
class Segment:
    """A part of a weight that the threads of one node read."""

    memory: np.ndarray  # uint8
    node: int  # as the engine numbers it
    number: int  # as the kernel does; -1: anywhere

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    def lies(self) -> dict[int, int] | None:
        """Bytes on the kernel's nodes, see `pages.where`."""
        return where(self.memory.ctypes.data, self.memory.nbytes)


def resident(segments: Iterable[Segment]) -> dict[int, int]:
    """Bytes on each of the kernel's nodes by its own answer, -1 being nowhere; empty where it
    does not answer."""
    total: Counter[int] = Counter()
    for segment in segments:
        total.update(segment.lies() or {})
    return dict(sorted(total.items()))


def misplaced(segments: Iterable[Segment]) -> int:
    """Bytes that are on another node than the one whose threads read them."""
    found = ((s.number, s.lies() or {}) for s in segments if s.number >= 0)
    return sum(size for number, lies in found for n, size in lies.items() if n != number)
