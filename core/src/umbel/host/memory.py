"""Memory of the host backend: NumPy arrays, and weights that stay mapped until they are
needed."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np

from umbel.errors import OutOfMemoryError
from umbel.gguf.types import DType, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device

_SMALL = 1 << 16  # bytes
PIECE = 1 << 17  # values that are dequantised at a time: they stay in the processor's cache


@attrs.define(eq=False)
class HostBuffer:
    """Plain memory."""

    memory: np.ndarray  # uint8
    handle: int = attrs.field(init=False)  # its address, which NumPy takes a while to tell

    @handle.default
    def _address(self) -> int:
        return int(self.memory.ctypes.data)

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.memory[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        if data.nbytes < _SMALL:
            raw = data.tobytes()  # costs a step less than views of its inputs
            self.memory.data[offset : offset + len(raw)] = raw
            return
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory[offset : offset + view.size] = view

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.memory


@attrs.define(eq=False)
class HostWeight(HostBuffer):
    """A weight as the file maps it, and its float32 values once they were asked for."""

    raw: np.ndarray  # the same memory, as `GGUFFile.array` gives it
    tensor: Tensor
    kind: HostBufferType
    _dense: np.ndarray | None = None

    def dense(self, *, always: bool = False) -> np.ndarray | None:
        """All values, as float32 unless they are integers, kept; None when there is no room for
        a copy."""
        if self.raw.dtype in (np.float32, np.int32):
            return self.raw
        if self._dense is None and (self.kind.take(self) or always):
            self._dense = self.values(slice(None))
        return self._dense

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def __getitem__(self, i: int) -> np.ndarray:
        """One matrix of a stack, or a row."""
        return self.values(slice(i, i + 1)).reshape(self.shape[1:])

    def values(self, rows: slice) -> np.ndarray:
        """Some of the values along the first axis, as float32."""
        dtype = self.tensor.dtype
        raw = np.ascontiguousarray(self.raw[rows]).view(np.uint8)
        blocks = raw.reshape(-1, dtype.block_bytes)
        values = np.empty((len(blocks), dtype.block), np.float32)
        step = PIECE // dtype.block

        def decode(at: int) -> None:
            # as one long row: of many rows the decoder would make smaller pieces again
            piece = blocks[at : at + step].reshape(-1).view(self.raw.dtype)
            values[at : at + step] = dequantise(piece, dtype).reshape(-1, dtype.block)

        starts = range(0, len(blocks), step)
        with ThreadPoolExecutor(self.kind.threads) as pool:
            list((pool.map if len(starts) > 1 else map)(decode, starts))
        return values.reshape(-1, *self.shape[1:])


@attrs.define(eq=False)
class HostBufferType:
    """Host memory: everything is accepted as the file has it."""

    limit: int  # bytes that dequantised copies of weights may take
    threads: int = 1  # that dequantise
    used: int = 0  # bytes of copies
    alignment: int = 64
    max_size: int = 1 << 62
    is_host: bool = True
    separate: bool = False
    in_place: bool = True

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return device.backend == "host"

    def accepts(self, tensor: Tensor) -> DType:
        return tensor.dtype

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
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return HostWeight(raw, array, tensor, self)

    def take(self, weight: HostWeight) -> bool:
        """Whether there is room for a float32 copy; it comes back when the weight goes."""
        nbytes = 4 * weight.tensor.size
        fits = self.used + nbytes <= self.limit
        if fits:
            self.used += nbytes
            weakref.finalize(weight, self._give, nbytes)
        return fits

    def _give(self, nbytes: int) -> None:
        self.used -= nbytes
