"""Buffers on an NPU, and the dtypes in which it keeps what a file has.

Weights and states are announced before the first has memory: while a model is placed `accepts`
is asked of all weights, and `alloc_size` of all states when their sum is held against what is
free. So a few large pieces of memory can be taken for them. A wrong guess does no harm: what is
left of a piece is for whatever comes.

Of a state the first rows have memory; it grows as further ones are written (`states.py`). What
was not written yet is zero, for whoever reads a whole block of rows (`paging.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError, UmbelError
from umbel.gguf.types import BY_NAME, F16, F32, I32, DType
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, Device

from umbel_cann.chips import Chip
from umbel_cann.heap import ALIGNMENT, Heap, Region, padded
from umbel_cann.runtime import TO_DEVICE, TO_HOST, WITHIN, Npu
from umbel_cann.weights import quantised
from umbel_cann.weights.quantised import Layout
from umbel_cann.weights.upload import Uploads, pieces

if TYPE_CHECKING:
    from collections.abc import Hashable

_PIECE = 256 << 20  # bytes of weights that are taken at once, or a sixth of a larger model
BLOCK = 128  # rows by which states grow
_KNOWN = 1 << 16  # bytes of an input that is copied together with others


@attrs.define(eq=False)
class NpuBuffer:
    """Some of a device's memory."""

    region: Region
    npu: Npu
    # The integers that the host wrote, by offset: a device that cannot scatter copies rows to
    # where they say, and states grow as far as they say.
    integers: dict[int, np.ndarray] = attrs.field(factory=dict)
    whole: bool = False  # what is written to it are whole tensors
    values: np.dtype[Any] | None = None  # of a cache that attention reads in blocks
    results: dict[int, np.dtype[Any]] = attrs.field(factory=dict)  # of steps, by offset
    grow: Callable[..., None] | None = None  # grow(buffer, bytes, ahead=): room for so many

    @property
    def nbytes(self) -> int:
        return self.region.nbytes

    @property
    def handle(self) -> int:
        return self.region.address

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        out = np.empty(nbytes, np.uint8)
        self.npu.copy(out.ctypes.data, self.handle + offset, nbytes, TO_HOST)
        self._look_at(out, self.results.get(offset))
        return out

    def _look_at(self, raw: np.ndarray, kind: np.dtype[Any] | None) -> None:
        """A token whose keys or values are not finite has a result that is not, either."""
        if kind is not None and not np.isfinite(raw.view(kind)).all():
            self.npu.doubtful = "values that are not finite"

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data)
        if self.values is not None:
            self._look_at(raw.reshape(-1).view(np.uint8), self.values)
        if self.grow is not None and offset + raw.nbytes > self.nbytes:
            self.grow(self, offset + raw.nbytes)
        self.integers.pop(offset, None)
        if raw.dtype == np.int32:
            self.integers[offset] = raw.reshape(-1).copy()
        if self.whole and raw.nbytes <= _KNOWN:
            self.npu.put(self.handle + offset, raw, self.region)
        else:
            self.npu.copy(self.handle + offset, raw.ctypes.data, raw.nbytes, TO_DEVICE)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        """From another NPU where they reach each other; the core has waited for that one."""
        if not isinstance(source, NpuBuffer) or not self.npu.reaches(source.npu):
            return False
        place = source.handle + source_offset
        self.npu.copy(self.handle + offset, place, nbytes, WITHIN)
        return True

    def map(self, mode: str) -> np.ndarray:
        msg = "the host cannot see the memory of an NPU"
        raise RuntimeError(msg)


@attrs.frozen(eq=False)
class QuantisedBuffer:
    """A weight of 4 or 8 bits; `read` gives it in blocks, as `quantised.blocks` makes them."""

    held: NpuBuffer
    layout: Layout

    @property
    def nbytes(self) -> int:
        return self.held.nbytes

    @property
    def handle(self) -> int:
        return self.held.handle

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        parts = [self.held.read(at, size) for at, size in self.layout.parts]
        return quantised.blocks(self.layout.form, parts).reshape(-1)[offset : offset + nbytes]

    def write(self, offset: int, data: np.ndarray) -> None:
        msg = "a weight is stored, and never written"
        raise RuntimeError(msg)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.held.map(mode)


@attrs.define(eq=False)
class NpuMemory:
    """How it is had."""

    npu: Npu
    chip: Chip
    dtype: DType  # of values
    heap: Heap = attrs.field(init=False)
    uploads: Uploads = attrs.field(init=False)
    alignment: int = ALIGNMENT
    max_size: int = 1 << 62
    is_host: bool = False
    separate: bool = False
    tells_progress: bool = True
    in_place: bool = False  # an Add into one of its inputs breaks later products on a 310B
    coming: dict[Hashable, int] = attrs.field(factory=dict)  # weights, until they are stored
    # bytes in all and at first of states, until they have memory
    states: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    moved: int = 0  # how often a state was given other memory
    announced: int = 0  # bytes of weights in all
    # gives memory back that is not needed now, and says whether there was any
    spare: Callable[[], bool] = attrs.field(default=lambda: False)

    @heap.default
    def _heap(self) -> Heap:
        return Heap(self.npu.allocate, self.npu.free, self.npu.wait)

    @uploads.default
    def _uploads(self) -> Uploads:
        return Uploads(self.npu)

    def close(self) -> None:
        """Gives everything back."""
        self.uploads.close()
        self.heap.release()

    def alloc_size(self, tensor: Tensor) -> int:
        if tensor.role is Role.WEIGHT:
            return padded(self._room(tensor, tensor.dtype)[0])
        size = padded(tensor.nbytes)
        if tensor.role is Role.STATE:
            rows = min(tensor.shape[0], 2 * BLOCK)
            self.states[tensor.name] = size, padded(tensor.nbytes // tensor.shape[0] * rows)
        return size

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, tensor: Tensor) -> DType:
        if tensor.name.startswith(("k_cache.", "v_cache.")) and tensor.dtype is F32:
            return F16  # half the memory, and what attention operators take
        if tensor.name.startswith("ssm.") and self.chip.float32:
            return F32  # sums of all that came before, to which a token may add little
        kept = self._kept(tensor)
        if tensor.role is Role.WEIGHT:
            self._announce(tensor, kept)
        return kept

    def _kept(self, tensor: Tensor) -> DType:
        if tensor.dtype is I32:
            return I32
        if (few := quantised.kept(tensor, self.chip)) is not None:
            return few
        if self.dtype is F16 or (tensor.dtype is not F32 and len(tensor.shape) > 1):
            return F16
        return F32

    def _announce(self, tensor: Tensor, kept: DType) -> None:
        size = padded(self._room(tensor, kept)[0]) + ALIGNMENT
        if (key := _key(tensor)) not in self.coming:
            self.coming[key] = size
            self.announced += size

    def allocate(self, nbytes: int, usage: str) -> NpuBuffer:
        if usage != "state":
            region = self.take(nbytes, 0, f"{usage} memory")
            return NpuBuffer(region, self.npu, whole=True)
        known = list(self.states.items())
        like = next((name for name, (size, _) in known if size == nbytes), "")
        ahead = sum(first + ALIGNMENT for _, (_, first) in known)
        _, first = self.states.pop(like, (0, nbytes))
        buffer = NpuBuffer(self.take(first, ahead, "state memory"), self.npu)
        buffer.grow = partial(self._grow, nbytes)
        self.npu.clear(buffer.handle, buffer.nbytes)
        return buffer

    def _grow(self, most: int, buffer: NpuBuffer, nbytes: int, ahead: int = 0) -> None:
        """Other memory for a state, with what is in it: an eighth more than before at least."""
        size, old = max(nbytes, buffer.nbytes // 8 * 9), buffer.region
        new = self.take(padded(min(size, most)), ahead, "state memory")
        self.npu.copy(new.address, old.address, old.nbytes, WITHIN)
        self.npu.clear(new.address + old.nbytes, new.nbytes - old.nbytes)
        buffer.region = new  # not before what is in it is right
        self.moved += 1

    def store(
        self, tensor: Tensor, array: np.ndarray, tell: Callable[[int], None] = lambda _: None
    ) -> NpuBuffer | QuantisedBuffer:
        kept = self._kept(tensor)
        size, layout = self._room(tensor, kept)
        region = self.take(padded(size), self._ahead(tensor), tensor.label)
        buffer = NpuBuffer(region, self.npu)
        try:
            self.uploads.send(buffer.handle, size, pieces(tensor, array, kept, layout), tell)
        except UmbelError as error:
            error.where = error.where or tensor.label
            raise
        return QuantisedBuffer(buffer, layout) if layout else buffer

    def _room(self, tensor: Tensor, kept: DType) -> tuple[int, Layout | None]:
        """Bytes of a weight as it is kept, and where its parts lie, if it has some."""
        found = quantised.form(attrs.evolve(tensor, dtype=kept, strides=()), self.chip)
        layout = Layout(found, tensor.size) if found else None
        return (layout.nbytes if layout else tensor.size * kept.block_bytes), layout

    def _ahead(self, tensor: Tensor) -> int:
        """Bytes to take for this and the weights after it; nobody announces them again where a
        model is loaded a second time, and then what there is grows by an eighth."""
        known = self.coming.pop(_key(tensor), 0)
        if tensor.role is not Role.WEIGHT:
            return 0
        left = known + sum(self.coming.values()) if known else self.heap.living // 8
        return min(left, max(_PIECE, self.announced // 6))

    def take(self, nbytes: int, ahead: int, what: str) -> Region:
        """Some memory; what can be made again goes before there is none."""
        try:
            return self.heap.take(nbytes, ahead)
        except OutOfMemoryError:
            if not self.spare():
                raise self._full(nbytes, what) from None
        try:
            return self.heap.take(nbytes, ahead)
        except OutOfMemoryError as error:
            raise self._full(nbytes, what) from error

    @property
    def free(self) -> int:
        """Bytes that nobody uses."""
        return self.npu.memory()[0] + self.heap.reserved - self.heap.living

    def _full(self, nbytes: int, what: str) -> OutOfMemoryError:
        free, gaps = self.npu.memory()[0], self.heap.reserved - self.heap.living
        later = sum(self.coming.values()) + sum(n for _, n in self.states.values())
        msg = f"the NPU has no room for {nbytes} bytes ({what})"
        expected = f"at most {free} bytes: {max(nbytes - free, 0)} are missing"
        if later:
            total = max(nbytes + later - free - gaps, nbytes - free)
            expected += f", up to {total} with the weights and the context still to come"
        do = "take a smaller --ctx, --ubatch or model, or --offload-layers"
        return OutOfMemoryError(msg, expected=expected, got=nbytes, do=do)


def dtype_of(chip: Chip, wanted: str) -> DType:
    """In what a chip computes: as it likes, or as the user says."""
    return BY_NAME[chip.dtype if wanted == "auto" else wanted]


def _key(tensor: Tensor) -> Hashable:
    return tensor.name, tensor.dtype, tensor.shape
