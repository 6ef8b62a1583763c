"""Memory of the host backend: NumPy arrays, and weights that stay mapped until they are
needed."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np

from umbel import host_blas
from umbel.errors import OutOfMemoryError
from umbel.gguf.quants import dequantise
from umbel.gguf.types import DType
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device

PIECE = 1 << 17  # values that are dequantised at a time: they stay in the processor's cache


@attrs.define(eq=False)
class Budget:
    """Bytes that dequantised copies of weights may take."""

    limit: int
    used: int = 0

    def take(self, nbytes: int) -> bool:
        if self.used + nbytes > self.limit:
            return False
        self.used += nbytes
        return True

    def give(self, nbytes: int) -> None:
        self.used -= nbytes


@attrs.define(eq=False)
class HostBuffer:
    """Plain memory."""

    memory: np.ndarray  # uint8

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    @property
    def handle(self) -> int:
        return int(self.memory.ctypes.data)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        copy: np.ndarray = self.memory[offset : offset + nbytes].copy()
        return copy

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.memory


@attrs.define(eq=False)
class HostWeight(HostBuffer):
    """A weight as the file maps it, and its float32 values once they were asked for."""

    raw: np.ndarray  # the same memory, as `GGUFFile.array` gives it
    shape: tuple[int, ...]
    dtype: DType
    budget: Budget
    _dense: np.ndarray | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def dense(self, *, always: bool = False) -> np.ndarray | None:
        """All values, as float32 unless they are integers, kept; None when the budget does not
        allow a copy."""
        with self._lock:
            if self._dense is None and self.raw.dtype in (np.float32, np.int32):
                self._dense = self.raw
            elif self._dense is None:
                nbytes = self.nbytes // self.dtype.block_bytes * self.dtype.block * 4
                if self.budget.take(nbytes):
                    weakref.finalize(self, self.budget.give, nbytes)
                    self._dense = self.values(slice(None))
                elif always:
                    self._dense = self.values(slice(None))
            return self._dense

    def values(self, rows: slice) -> np.ndarray:
        """Some of the values along the first axis, as float32."""
        raw = np.ascontiguousarray(self.raw[rows]).view(np.uint8)
        blocks = raw.reshape(-1, self.dtype.block_bytes)
        values = np.empty((len(blocks), self.dtype.block), np.float32)
        step = PIECE // self.dtype.block

        def decode(at: int) -> None:
            # as one long row: of many rows the decoder would make smaller pieces again
            piece = blocks[at : at + step].reshape(-1).view(self.raw.dtype)
            values[at : at + step] = dequantise(piece, self.dtype).reshape(-1, self.dtype.block)

        starts = range(0, len(blocks), step)
        with ThreadPoolExecutor(host_blas.threads()) as pool:
            list((pool.map if len(starts) > 1 else map)(decode, starts))
        return values.reshape(-1, *self.shape[1:])


@attrs.frozen(eq=False)
class HostBufferType:
    """Host memory: everything is accepted as the file has it."""

    budget: Budget
    alignment: int = 64
    max_size: int = 1 << 62
    is_host: bool = True
    separate: bool = False
    in_place: bool = True

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return device.backend == "host"

    def accepts(self, dtype: DType) -> DType:
        return dtype

    def allocate(self, nbytes: int, usage: str) -> HostBuffer:
        try:
            memory = np.empty(nbytes + self.alignment, np.uint8)
        except (MemoryError, ValueError) as error:
            msg = f"there is no room for {nbytes} bytes of {usage} memory"
            do = "use a smaller --ctx, or --kv q8_0"
            raise OutOfMemoryError(msg, where="host", got=nbytes, do=do) from error
        start = -memory.ctypes.data % self.alignment
        return HostBuffer(memory[start : start + nbytes])

    def store(self, tensor: Tensor, array: np.ndarray) -> HostWeight:
        memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return HostWeight(memory, array, tensor.shape, tensor.dtype, self.budget)
