"""A pool of surfaces: those that are given back are taken again.

All surfaces of a split have one size (constraints 2 and 18: inputs uniform, outputs uniform,
and what one program leaves another reads). Sizes are rounded up to classes, so that splits of
other shapes find surfaces that fit.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from umbel.errors import OutOfMemoryError

from umbel_ane.drivers import AneError, Driver, Surface

PAGE = 16384  # of memory, on Apple's chips


def size_class(nbytes: int, least: int) -> int:
    """Bytes of a surface for `nbytes`: whole pages, at most an eighth more than is needed."""
    wanted = max(nbytes, least, 1)
    step = max(PAGE, 1 << max((wanted - 1).bit_length() - 4, 0))
    return -(-wanted // step) * step


@attrs.define(eq=False)
class Pool:
    """Surfaces of one device, by their size. Only a thread with the device's lock uses it."""

    driver: Driver
    taken: int = attrs.field(default=0, init=False)  # bytes of surfaces in use
    idle: int = attrs.field(default=0, init=False)  # of those that wait to be taken
    made: int = attrs.field(default=0, init=False)  # surfaces that were ever created
    _free: dict[int, list[Surface]] = attrs.field(factory=dict, init=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all surfaces that there are."""
        return self.taken + self.idle

    def take(self, nbytes: int) -> Surface:
        """A surface of zeros for `nbytes`."""
        size = size_class(nbytes, self.driver.profile.min_surface)
        if waiting := self._free.get(size):
            surface = waiting.pop()
            self.idle -= size
            with surface.lock() as memory:
                memory.fill(0)
        else:
            surface = self._new(size)
        self.taken += size
        return surface

    def _new(self, size: int) -> Surface:
        try:
            surface = self.driver.surface(size)
        except (AneError, MemoryError) as error:
            if self.trim():
                return self._new(size)
            msg = f"there is no room for a surface of {size} bytes"
            got = f"{self.nbytes} bytes of surfaces in use; {error}"
            do = "lower --ctx or --ubatch"
            raise OutOfMemoryError(msg, got=got, do=do) from error
        self.made += 1
        with surface.lock() as memory:
            memory.fill(0)
        return surface

    def give(self, surfaces: Iterable[Surface]) -> None:
        """They are not needed any more."""
        for surface in surfaces:
            size = surface.nbytes
            self._free.setdefault(size, []).append(surface)
            self.taken -= size
            self.idle += size

    def trim(self) -> int:
        """Releases what waits; how many bytes that was."""
        gone, self.idle = self.idle, 0
        for surface in (s for waiting in self._free.values() for s in waiting):
            surface.release()
        self._free.clear()
        return gone
