"""Memory that only the machine sees: the host reads and writes it by copies."""

import threading
from collections.abc import Callable
from weakref import WeakSet

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F16, F32, I32, DType, convert
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device

JUNK = 0xFF  # what fresh memory holds: NaN, or a row that is nowhere


@attrs.define(eq=False)
class Piece:
    """A buffer. What is asked of it waits for the machine, which may still be using it."""

    handle: np.ndarray  # for the machine only
    settle: Callable[[], None]

    @property
    def nbytes(self) -> int:
        return int(self.handle.size)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        self.settle()
        return np.array(self.handle[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        self.settle()
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.handle[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False  # the host takes it there

    def map(self, mode: str) -> np.ndarray:
        msg = "the host cannot see the memory of a toy"
        raise RuntimeError(msg)


@attrs.define(eq=False)
class Memory:
    """So much of it; tensors begin at multiples of 128 bytes and fill whole tiles of 128."""

    size: int
    settle: Callable[[], None]  # waits until the machine has done what it was told before
    alignment: int = 128
    max_size: int = 1 << 30
    is_host: bool = False
    separate: bool = False
    in_place: bool = False
    _pieces: WeakSet[Piece] = attrs.field(factory=WeakSet, init=False)  # those in use
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @property
    def left(self) -> int:
        with self._lock:  # `status` asks while others allocate
            return self.size - sum(piece.nbytes for piece in self._pieces)

    def alloc_size(self, tensor: Tensor) -> int:
        return -(-tensor.nbytes // self.alignment) * self.alignment

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, tensor: Tensor) -> DType:
        """Matrices and states become float16; norms, biases and the like are float32."""
        if tensor.dtype is I32:
            return I32
        return F32 if len(tensor.shape) == 1 else F16

    def allocate(self, nbytes: int, usage: str) -> Piece:
        if nbytes > self.left:
            msg = f"the toy has no room for {nbytes} bytes of {usage} memory"
            raise OutOfMemoryError(msg, expected=self.left, got=nbytes)
        piece = Piece(np.full(nbytes, JUNK, np.uint8), self.settle)
        with self._lock:
            self._pieces.add(piece)
        return piece

    def store(self, tensor: Tensor, array: np.ndarray) -> Piece:
        array = convert(array, tensor.dtype, self.accepts(tensor))
        piece = self.allocate(array.nbytes, "weight")
        piece.write(0, array)
        return piece
