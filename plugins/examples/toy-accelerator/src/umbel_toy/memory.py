"""Memory that only the machine sees: the host reads and writes it by copies."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F16, DType, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device


@attrs.define(eq=False)
class Piece:
    """A buffer. What is asked of it waits for the machine, which may still be using it."""

    memory: Memory
    bytes: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.bytes.size

    @property
    def handle(self) -> Piece:
        return self

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        self.memory.settle()
        return self.bytes[offset : offset + nbytes].copy()

    def write(self, offset: int, data: np.ndarray) -> None:
        self.memory.settle()
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.bytes[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False  # the host takes it there

    def map(self, mode: str) -> np.ndarray:
        msg = "the host cannot see the memory of a toy"
        raise RuntimeError(msg)

    def __del__(self) -> None:
        self.memory.left += self.bytes.size


@attrs.define(eq=False)
class Memory:
    """So much of it; tensors begin at multiples of 128 bytes and fill whole ones."""

    left: int
    settle: Callable[[], None]  # waits until the machine has done what it was told before
    alignment: int = 128
    max_size: int = 1 << 30
    is_host: bool = False
    separate: bool = False
    in_place: bool = False

    def alloc_size(self, tensor: Tensor) -> int:
        return -(-tensor.nbytes // self.alignment) * self.alignment

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, dtype: DType) -> DType:
        """Integers as they are; every weight becomes float16."""
        return dtype if dtype.name == "i32" else F16

    def allocate(self, nbytes: int, usage: str) -> Piece:
        if nbytes > self.left:
            msg = f"the toy has no room for {nbytes} bytes of {usage} memory"
            raise OutOfMemoryError(msg, expected=self.left, got=nbytes)
        self.left -= nbytes
        return Piece(self, np.full(nbytes, 0xFF, np.uint8))  # what was there before is junk

    def store(self, tensor: Tensor, array: np.ndarray) -> Piece:
        if tensor.dtype.name != "i32":
            with np.errstate(over="ignore"):
                array = dequantise(array, tensor.dtype).astype(np.float16)
        piece = self.allocate(array.nbytes, "weight")
        piece.write(0, array)
        return piece
