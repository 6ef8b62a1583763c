"""What stands in for an NPU where only memory matters: blocks of the host's, counted."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from umbel.errors import DeviceError, OutOfMemoryError


class StandIn:
    """An NPU with so many bytes."""

    def __init__(self, size: int = 1 << 40, *, real: bool = True) -> None:
        self.left, self.real = size, real
        self.blocks: dict[int, int] = {}
        self.memories: dict[int, np.ndarray] = {}
        self.sizes: list[int] = []  # of all allocations
        self.waits = 0
        self._next = 1 << 20

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.left:
            msg = "aclrtMalloc failed: ACL_ERROR_RT_MEMORY_ALLOCATION (207001)"
            raise OutOfMemoryError(msg)
        self.left -= nbytes
        if self.real:
            memory = np.full(nbytes + 64, 0xFF, np.uint8)
            address = memory.ctypes.data + -memory.ctypes.data % 64
            self.memories[address] = memory
        else:
            address, self._next = self._next, self._next + -(-nbytes // 64) * 64
        self.blocks[address] = nbytes
        self.sizes.append(nbytes)
        return address

    def free(self, address: int) -> None:
        self.left += self.blocks.pop(address)
        self.memories.pop(address, None)

    def wait(self) -> None:
        self.waits += 1

    def reaches(self, other: StandIn) -> bool:
        return other is self

    def memory(self) -> tuple[int, int]:
        return self.left, self.left + sum(self.blocks.values())

    def pin(self, nbytes: int) -> int:
        msg = "there is no such memory"
        raise DeviceError(msg)

    def copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        self.wait()
        if self.real:
            ctypes.memmove(to, source, nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        if self.real:
            ctypes.memset(address, 0, nbytes)

    def put(self, to: int, data: np.ndarray, memory: object) -> None:
        self.copy(to, data.ctypes.data, data.nbytes, 1)


def npu(**more: Any) -> Any:
    return StandIn(**more)
