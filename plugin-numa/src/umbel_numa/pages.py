"""Memory by the page: fresh, on a node, and what the kernel says of where it lies."""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import weakref
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


# Memory by its address and size, for as long as somebody has it.
Pieces = weakref.WeakValueDictionary[tuple[int, int], np.ndarray]


def _keep(pieces: Pieces, memory: np.ndarray) -> None:
    owner = memory.base if isinstance(memory.base, np.ndarray) else memory
    pieces[memory.ctypes.data, memory.nbytes] = owner


@attrs.define
class Room:
    """The memory that is free. The system takes a while to tell, so it is asked again only when
    an eighth of its last answer is taken.

    It calls free what was granted and nobody has touched yet, such as a long context that may
    fill in hours. Who gets such memory promises it here: what of it is not there yet counts as
    taken as long as somebody has it.
    """

    ask: Callable[[], int] = lambda: machine_memory()[1]  # 0: it does not tell
    free: int = 0
    taken: int = 0
    promised: Pieces = attrs.field(factory=weakref.WeakValueDictionary)

    def has(self, nbytes: int) -> bool:
        """Whether there is so much, which is taken then."""
        if 8 * (self.taken + nbytes) > self.free:
            told = self.ask()
            self.free, self.taken = told and max(told - self._untouched(), 1), 0
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

    def promise(self, memory: np.ndarray) -> None:
        """That it will be touched, some time."""
        _keep(self.promised, memory)

    def ask_again(self) -> None:
        self.free = 0

    def _untouched(self) -> int:
        """Bytes of what was promised; none of what was given back meanwhile."""
        return sum(max(library().un_pages_absent(*p), 0) for p in list(self.promised))


@attrs.define
class Binder:
    """Puts memory on the kernel's nodes, and says once where that is refused.

    What is bound to a node takes the place of copies of files there, which a mere preference
    would leave: that makes do with another node. But where a node has nothing to give, the
    kernel ends whoever is bound to it, however much others have; so nothing is bound then.
    What is bound already and waits to be touched is not the node's to give: see `Room`.
    """

    refused: str = ""  # why
    room: Room = attrs.field(factory=Room)  # of all nodes
    rooms: dict[int, Room] = attrs.field(factory=dict)  # of each
    left: dict[int, Pieces] = attrs.field(factory=dict)  # what they had no room for

    @property
    def full(self) -> list[int]:
        """Nodes that had no room for some of what is in use. It may be asked at any time."""
        return sorted(number for number, left in self.left.copy().items() if len(left))

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
        room = self.rooms.setdefault(number, Room(lambda: _free_on(number)))
        if not room.has(memory.nbytes):
            self._leave(memory, number)
            return
        code = library().un_pages_bind(memory.ctypes.data, memory.nbytes, number)
        if code < 0:
            self._say("bound to", code)
        else:
            room.promise(memory)

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

    def _leave(self, memory: np.ndarray, number: int) -> None:
        """Where it is touched first; which is told once, for as long as such memory lives."""
        left = self.left.setdefault(number, weakref.WeakValueDictionary())
        if not len(left):
            told = "node %d is full: some of what it reads may lie on other nodes"
            log.warning(told, number)
        _keep(left, memory)


def _free_on(number: int) -> int:
    """Bytes of a node that may be bound to it; 0: the system does not tell."""
    free = available(number)
    return free and max(free - _KEPT, 1)
