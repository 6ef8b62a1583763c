"""Memory of the host backend: NumPy arrays, and weights that stay mapped until they are
needed."""

from __future__ import annotations

import threading

import attrs
import numpy as np

from umbel.errors import OutOfMemoryError
from umbel.gguf.quants import dequantise
from umbel.gguf.types import F32, DType
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device


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


@attrs.frozen(eq=False)
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
        return self.memory[offset : offset + nbytes].copy()

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.memory


@attrs.define(eq=False)
class HostWeight:
    """A weight as the file maps it, and its float32 values once they were asked for."""

    raw: np.ndarray  # as `GGUFFile.array` gives it
    dtype: DType
    budget: Budget
    _dense: np.ndarray | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        return int(self.raw.nbytes)

    @property
    def handle(self) -> HostWeight:
        return self

    def dense(self, *, always: bool = False) -> np.ndarray | None:
        """All values as float32, kept; None when the budget does not allow a copy."""
        with self._lock:
            if self._dense is None:
                if self.dtype is F32:
                    self._dense = self.raw
                else:
                    nbytes = 4 * self.raw.nbytes // self.dtype.block_bytes * self.dtype.block
                    if self.budget.take(nbytes) or always:
                        self._dense = _in_pieces(self.raw, self.dtype)
            return self._dense

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        flat = np.ascontiguousarray(self.raw).reshape(-1).view(np.uint8)
        return flat[offset : offset + nbytes].copy()

    def write(self, offset: int, data: np.ndarray) -> None:
        msg = "a mapped weight cannot be written; store it anew"
        raise OutOfMemoryError(msg)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return np.ascontiguousarray(self.raw).reshape(-1).view(np.uint8)


def _in_pieces(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Dequantised in pieces, so that the intermediates of the decoder stay small."""
    rows = raw.reshape(-1, raw.shape[-1])
    n = raw.shape[-1] // (dtype.block_bytes if dtype.numpy is None else 1) * dtype.block
    dense = np.empty((len(rows), n), np.float32)
    step = max(1, (1 << 20) // max(n, 1))
    for at in range(0, len(rows), step):
        dense[at : at + step] = dequantise(rows[at : at + step], dtype)
    return dense.reshape(*raw.shape[:-1], n)


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
        except MemoryError as error:
            msg = f"there is no room for {nbytes} bytes of {usage} memory"
            raise OutOfMemoryError(
                msg, where="host", do="use a smaller --ctx, or --kv q8_0"
            ) from error
        start = -memory.ctypes.data % self.alignment
        return HostBuffer(memory[start : start + nbytes])

    def store(self, tensor: Tensor, array: np.ndarray) -> HostWeight:
        return HostWeight(array, tensor.dtype, self.budget)
