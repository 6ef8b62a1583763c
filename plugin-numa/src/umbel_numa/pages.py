"""Memory by the page: fresh, on a node, and what the kernel says of where it lies."""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
from collections.abc import Callable

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.host import memory as machine_memory

from umbel_numa.library import library
from umbel_numa.placement import available

log = logging.getLogger("umbel")

_LARGE = 1 << 21  # bytes from which on huge pages are asked for
_LINE = 64
_MOST_NODES = 1024  # of any kernel
_KEPT = 1 << 27  # bytes of a node that are left to the kernel, for it to go on at all


def fresh(nbytes: int, usage: str, alignment: int = _LINE) -> np.ndarray:
    """Memory that nobody has touched, aligned; large pieces in huge pages where offered.

    What is large, or aligned to pages, has pages of its own.
    """
    try:
        if nbytes >= _LARGE or alignment > _LINE:
            alignment = _LARGE if nbytes >= _LARGE else alignment
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones have no huge pages
            area = mmap.mmap(-1, nbytes + alignment, flags=private)
            memory = np.frombuffer(area, np.uint8)
            if nbytes >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them: a wish
                    area.madvise(mmap.MADV_HUGEPAGE)
        else:
            memory = np.empty(nbytes + alignment, np.uint8)
    except (OSError, MemoryError, ValueError, OverflowError) as error:
        msg = f"there is no room for {nbytes} bytes of {usage} memory"
        state = usage == "state"
        do = "use a smaller --ctx, or --kv q8_0" if state else "use a smaller --ubatch"
        raise OutOfMemoryError(msg, got=nbytes, do=do) from error
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]


def page_size() -> int:
    return int(library().un_pages_size())


def whole_pages(nbytes: int) -> int:
    return -(-nbytes // page_size()) * page_size()


def where(address: int, nbytes: int) -> dict[int, int] | None:
    """Bytes on each of the kernel's nodes, by its own answer; -1: not in memory. None: it does
    not say."""
    counts = np.zeros(_MOST_NODES + 1, np.int64)
    if library().un_pages_where(address, nbytes, counts.ctypes.data, _MOST_NODES) < 0:
        return None
    found = {int(n): int(counts[n]) * page_size() for n in np.flatnonzero(counts)}
    return {-1 if n == _MOST_NODES else n: size for n, size in found.items()}


def may_ask() -> bool:
    """Whether the kernel says where pages lie: containers often refuse."""
    page = np.zeros(1, np.uint8)
    return where(page.ctypes.data // page_size() * page_size(), 1) is not None


@attrs.define
class Room:
    """The memory that is free. The system takes a while to tell, so it is asked again only when
    an eighth of its last answer is taken."""

    ask: Callable[[], int] = lambda: machine_memory()[1]  # 0: it does not tell
    free: int = 0
    taken: int = 0

    def has(self, nbytes: int) -> bool:
        """Whether there is so much, which is taken then."""
        if 8 * (self.taken + nbytes) > self.free:
            self.free, self.taken = self.ask(), 0
        if 0 < self.free < nbytes:
            return False
        self.taken += nbytes
        return True

    def take(self, nbytes: int, usage: str) -> None:
        """Refuses what the system would grant but does not have, and would then end somebody
        for."""
        if not self.has(nbytes):
            msg = f"there is no room for {usage} memory"
            raise OutOfMemoryError(msg, expected=f"at most {self.free} bytes", got=nbytes)

    def ask_again(self) -> None:
        self.free = 0


@attrs.define
class Binder:
    """Puts memory on the kernel's nodes, and says once where that is refused.

    What is bound to a node takes the place of copies of files there, which a mere preference
    would leave: that makes do with another node. But where a node has nothing to give, the
    kernel ends whoever is bound to it, however much others have; so nothing is bound then.
    """

    refused: str = ""  # why
    rooms: dict[int, Room] = attrs.field(factory=dict)  # of nodes
    full: set[int] = attrs.field(factory=set)  # nodes of which that was told

    def fresh(self, nbytes: int, usage: str, number: int) -> np.ndarray:
        """Whole pages that will lie on that node (-1: anywhere), whoever touches them first."""
        if number < 0:
            return fresh(nbytes, usage)
        memory = fresh(whole_pages(nbytes), usage, page_size())
        self.bind(memory, number)
        return memory[:nbytes]

    def bind(self, memory: np.ndarray, number: int) -> None:
        if number < 0 or self.refused or not memory.size:
            return
        if not self.rooms.setdefault(number, Room(lambda: _free_on(number))).has(memory.nbytes):
            self._say_full(number)
            return
        code = library().un_pages_bind(memory.ctypes.data, memory.nbytes, number)
        if code < 0:
            self._say("bound to", code)

    def move(self, memory: np.ndarray, number: int) -> bool:
        """Pages of a mapped file that have been read; whether all lie there now."""
        if number < 0 or self.refused or not memory.size:
            return False
        code = library().un_pages_move(memory.ctypes.data, memory.nbytes, number)
        if code in (-errno.EPERM, -errno.ENOSYS):
            self._say("moved to", code)
        return bool(code == 0)

    def _say(self, what: str, code: int) -> None:
        self.refused = os.strerror(-code)
        told = "%s: memory cannot be %s a NUMA node, and lies where it is touched first"
        log.warning(told, self.refused, what)

    def _say_full(self, number: int) -> None:
        if number not in self.full:
            self.full.add(number)
            told = "node %d is full: some of what it reads may lie on other nodes"
            log.warning(told, number)


def _free_on(number: int) -> int:
    """Bytes of a node that may be bound to it; 0: the system does not tell."""
    free = available(number)
    return free and max(free - _KEPT, 1)
