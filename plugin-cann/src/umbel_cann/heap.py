"""Device memory in few large pieces: best fit, reuse, and as few calls as can be.

A piece of memory from the vendor costs milliseconds and rounding; so chunks of 4 MiB and more
are taken, and everything is cut from them: begun at multiples of 64 and, as the vendor's own
allocator does, rounded up to 32 and 32 more, which a kernel may read past an end.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

import attrs
from umbel.errors import OutOfMemoryError

CHUNK = 4 << 20
ALIGNMENT = 64


def padded(nbytes: int) -> int:
    """Bytes that a tensor of so many needs."""
    return -(-nbytes // 32) * 32 + 32


def placed(nbytes: int) -> int:
    """Bytes from the beginning of such a tensor to that of the next one behind it."""
    return -(-padded(nbytes) // ALIGNMENT) * ALIGNMENT


@attrs.define(eq=False)
class Chunk:
    """One piece of the vendor's memory, and the gaps in it: offset -> bytes."""

    address: int
    size: int
    gaps: dict[int, int] = attrs.field(factory=dict)

    @property
    def empty(self) -> bool:
        return self.gaps.get(0) == self.size

    def cut(self, offset: int, size: int) -> None:
        left = self.gaps.pop(offset) - size
        if left:
            self.gaps[offset + size] = left

    def give(self, offset: int, size: int) -> None:
        """Back into a gap, joined with those beside it."""
        size += self.gaps.pop(offset + size, 0)
        for start, n in self.gaps.items():
            if start + n == offset:
                self.gaps[start] = n + size
                return
        self.gaps[offset] = size


@attrs.define(eq=False)
class Region:
    """What was cut from a chunk; it goes back when nobody holds it any more."""

    address: int
    nbytes: int
    __weakref__: object = attrs.field(init=False, repr=False)


@attrs.define(eq=False)
class Heap:
    """The memory of one device. `take` and `release` come with the device's lock held."""

    allocate: Callable[[int], int]
    free: Callable[[int], None]
    settle: Callable[[], None]  # waits for the device: what is freed may be in use
    chunks: list[Chunk] = attrs.field(factory=list, init=False)
    used: int = attrs.field(default=0, init=False)
    calls: int = attrs.field(default=0, init=False)
    # Regions die on any thread, at any point of it: then they are only noted.
    _dead: deque[tuple[Chunk, int, int]] = attrs.field(factory=deque, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @property
    def reserved(self) -> int:
        return sum(chunk.size for chunk in list(self.chunks))

    @property
    def living(self) -> int:
        """Bytes in use."""
        with self._lock:
            self._collect()
            return self.used

    def take(self, nbytes: int, ahead: int = 0) -> Region:
        """A region; a new chunk has room for `ahead` bytes in all, if it can be had."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            self._collect()
            chunk, offset = self._fit(size) or self._grow(size, max(ahead, CHUNK))
            chunk.cut(offset, size)
            self.used += size
        region = Region(chunk.address + offset, nbytes)
        weakref.finalize(region, self._dead.append, (chunk, offset, size)).atexit = False
        return region

    def _collect(self) -> None:
        while self._dead:
            chunk, offset, size = self._dead.popleft()
            chunk.give(offset, size)
            self.used -= size

    def _fit(self, size: int) -> tuple[Chunk, int] | None:
        """The smallest gap that is large enough."""
        gaps = ((n, i, at) for i, c in enumerate(self.chunks) for at, n in c.gaps.items())
        best = min((gap for gap in gaps if gap[0] >= size), default=None)
        return None if best is None else (self.chunks[best[1]], best[2])

    def _grow(self, size: int, ahead: int) -> tuple[Chunk, int]:
        """A chunk of its own; of less than was hoped for, when there is no more."""
        self._trim()
        wanted = max(size, -(-ahead // CHUNK) * CHUNK)
        while True:
            try:
                address = self.allocate(wanted)
                break
            except OutOfMemoryError as error:
                if wanted == size:
                    error.expected = error.expected or f"{size} bytes in one piece"
                    raise
                wanted = max(size, wanted // 2)
        self.calls += 1
        self.chunks.append(Chunk(address, wanted, {0: wanted}))
        return self.chunks[-1], 0

    def _trim(self) -> None:
        """Chunks that nothing is in go back: they did not fit, and others may want the room."""
        for chunk in [c for c in self.chunks if c.empty]:
            self.settle()
            self.chunks.remove(chunk)
            self.free(chunk.address)

    def release(self) -> None:
        """Everything goes back, whatever is in it."""
        with self._lock:
            self._dead.clear()
            chunks, self.chunks, self.used = self.chunks, [], 0
            for chunk in chunks:
                self.free(chunk.address)
