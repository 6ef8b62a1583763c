"""How memory lives here: what the core writes and reads is plain memory of the host.

The engine and the processor share one memory. What programs read are surfaces, in another
order of axes than the core's: they are filled from these buffers in one pass
(`runtime.feeds`), so the buffers themselves need not be surfaces. Buffers of states note what
was written to them, so that rows gathered for one step need not be gathered for the next.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from umbel.errors import DeviceError, OutOfMemoryError
from umbel.gguf.types import F16, F32, DType, convert, dequantise
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, Device

from umbel_ane.profile import Profile

log = logging.getLogger("umbel")

ALIGNMENT = 64
HALF = ("k_cache.", "v_cache.", "lora_")  # states of which programs read float16 anyway
_NOTED = 4096  # writes that a state remembers
_PIECE = 1 << 20  # values that are converted at a time
_MOST = 1 << 62


@attrs.define(eq=False)
class AneBuffer:
    """Some memory. `mark` counts what was written; None: somebody writes without telling."""

    memory: np.ndarray  # uint8
    notes: bool = False  # whether writes are remembered
    mark: int | None = 0
    _written: list[tuple[int, int]] = attrs.field(factory=list)  # (offset, bytes), the last

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    @property
    def handle(self) -> int:
        return int(self.memory.ctypes.data)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.memory[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory[offset : offset + raw.size] = raw
        self.touched(offset, raw.size)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        if not isinstance(source, AneBuffer):
            return False
        part = source.memory[source_offset : source_offset + nbytes]
        self.memory[offset : offset + nbytes] = part
        self.touched(offset, nbytes)
        return True

    def map(self, mode: str) -> np.ndarray:
        if mode != "r":
            self.mark = None
        return self.memory

    def touched(self, offset: int, nbytes: int) -> None:
        """Those bytes have changed."""
        if self.notes and self.mark is not None:
            self.mark += 1
            self._written.append((offset, nbytes))
            if len(self._written) > 2 * _NOTED:
                del self._written[:_NOTED]

    def since(self, mark: int | None) -> list[tuple[int, int]] | None:
        """What was written after that mark; None where nobody knows any more."""
        if not self.notes or self.mark is None or mark is None:
            return None
        n = self.mark - mark
        if n > len(self._written):
            return None
        return self._written[len(self._written) - n :]


@attrs.define
class Changes:
    """How often weights of a device were written after they were stored."""

    n: int = 0


@attrs.define(eq=False)
class AneWeight(AneBuffer):
    """A weight, in `tensor.dtype`; `array` is the same memory with its shape."""

    tensor: Tensor = attrs.field(kw_only=True)
    array: np.ndarray = attrs.field(kw_only=True)
    changes: Changes = attrs.field(kw_only=True)
    _digest: str = attrs.field(default="", init=False)

    @property
    def digest(self) -> str:
        """Names the contents, in every process."""
        if not self._digest:
            kind = f"{self.tensor.dtype} {self.tensor.shape}".encode()
            digest = hashlib.blake2b(kind, digest_size=12)
            digest.update(self.memory.data)
            self._digest = digest.hexdigest()
        return self._digest

    def map(self, mode: str) -> np.ndarray:
        if mode != "r":
            self.touched(0, self.nbytes)
        return super().map(mode)

    def touched(self, offset: int, nbytes: int) -> None:
        self._digest = ""
        self.changes.n += 1
        super().touched(offset, nbytes)

    def rows(self, which: Any = slice(None)) -> np.ndarray:
        """Values along the first axis: as they are kept where NumPy knows the type, else
        float32."""
        raw = self.array[which]
        return (
            raw if self.tensor.dtype.numpy is not None else dequantise(raw, self.tensor.dtype)
        )


@attrs.define(eq=False)
class AneMemory:
    """How it is had."""

    profile: Profile
    heads: bool = False  # whether large heads are computed here, in pieces
    alignment: int = ALIGNMENT
    max_size: int = _MOST
    is_host: bool = True
    separate: bool = False
    in_place: bool = False
    tells_progress: bool = True
    changes: Changes = attrs.field(factory=Changes)

    def alloc_size(self, tensor: Tensor) -> int:
        return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT

    def readable_by(self, device: Device) -> bool:
        return False  # but by who reads host memory

    def accepts(self, tensor: Tensor) -> DType:
        """Weights become float16, as programs hold them.

        Tables with more rows than a convolution has channels, which are embeddings and the
        heads that are tied to them, stay as they are in the file: the host gathers their rows,
        and dequantises those alone.
        """
        if tensor.role is Role.STATE:
            return F16 if tensor.name.startswith(HALF) else F32
        if tensor.dtype.numpy is not None and tensor.dtype.numpy.kind == "i":
            return tensor.dtype
        large = len(tensor.shape) == 2 and tensor.shape[0] > self.profile.max_channels
        return tensor.dtype if large and not self.heads else F16

    def allocate(self, nbytes: int, usage: str) -> AneBuffer:
        try:
            memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            msg = f"there is no room for {nbytes} bytes of {usage} memory"
            do = "use a smaller --ctx"
            raise OutOfMemoryError(msg, got=nbytes, do=do) from error
        start = -memory.ctypes.data % ALIGNMENT
        return AneBuffer(memory[start : start + nbytes], usage == "state")

    def store(
        self, tensor: Tensor, array: np.ndarray, tell: Callable[[int], None] = lambda _: None
    ) -> AneWeight:
        wanted = self.accepts(tensor)
        if wanted is not tensor.dtype:
            array = _converted(tensor, array, wanted, tell)
        elif wanted is F16 and not np.isfinite(array).all():
            _warn(tensor)
        raw = np.ascontiguousarray(array)
        kept = attrs.evolve(tensor, dtype=wanted, strides=())
        memory = raw.reshape(-1).view(np.uint8)
        return AneWeight(memory, tensor=kept, array=raw, changes=self.changes)


def _converted(
    tensor: Tensor, array: np.ndarray, wanted: DType, tell: Callable[[int], None]
) -> np.ndarray:
    """The weight in another dtype; a value that does not fit is named."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    row = tensor.shape[-1] if tensor.shape else 1
    out, done, odd = np.empty((len(rows), row), wanted.numpy), 0, False
    step = max(_PIECE // max(row, 1), 1)
    for at in range(0, len(rows), step):
        piece = rows[at : at + step]
        try:
            out[at : at + step] = convert(piece, tensor.dtype, wanted)
        except DeviceError as error:
            raise _too_large(tensor, dequantise(piece, tensor.dtype), at * row) from error
        odd = odd or not np.isfinite(out[at : at + step]).all()
        done += piece.nbytes
        tell(done)
    if odd:
        _warn(tensor)
    return out.reshape(tensor.shape)


def _too_large(tensor: Tensor, piece: np.ndarray, start: int) -> DeviceError:
    most = float(np.finfo(np.float16).max)
    where = int(np.flatnonzero(np.isfinite(piece) & (np.abs(piece) > most))[0])
    index = [int(i) for i in np.unravel_index(start + where, tensor.shape)]
    msg = f"a value of the weight {tensor.label!r} is too large for float16"
    got = f"{float(piece.reshape(-1)[where])!r} at {index}"
    do = "run the model on another device: the Neural Engine computes in float16 alone"
    return DeviceError(msg, where=tensor.label, expected=f"at most {most:g}", got=got, do=do)


def _warn(tensor: Tensor) -> None:
    log.warning("the weight %r has values that are not finite", tensor.label)
