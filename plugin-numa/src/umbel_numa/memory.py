"""Memory of the native engine: plain host memory, and weights in the layout of its kernels."""

from __future__ import annotations

import ctypes
import logging
import mmap
from typing import TYPE_CHECKING

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F16, F32, DType, dequantise
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, Device

from umbel_numa.library import LANES, WEIGHT, library
from umbel_numa.operations.products import PRODUCTS, READABLE, hand_over_table

if TYPE_CHECKING:
    from umbel_numa.engine import Engine

log = logging.getLogger("umbel")
_LARGE = 1 << 21  # bytes from which on memory is mapped by itself, in huge pages where offered


@attrs.define(eq=False)
class NativeBuffer:
    """Plain memory."""

    memory: np.ndarray  # uint8

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

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.memory


@attrs.define(eq=False)
class NativeWeight(NativeBuffer):
    """A weight: as the file maps it, or packed. `memory` is what it takes."""

    tensor: Tensor
    struct: np.ndarray | None = None  # un_weight, when packed
    rows: np.ndarray | None = None  # the file's, where packing rounds: gathers read these
    converted: bool = False  # the values are float32, whatever the tensor says

    @property
    def address(self) -> int:
        """Of the struct; 0 when the values lie as the file has them."""
        return 0 if self.struct is None else int(self.struct.ctypes.data)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """Bytes of the values; of a packed weight, as float32 where its rows are not there."""
        if self.rows is not None:
            return np.array(self.rows[offset : offset + nbytes])
        if self.struct is None:
            return super().read(offset, nbytes)
        shape = self.tensor.shape
        out = np.empty((int(np.prod(shape[:-1])), shape[-1]), np.float32)
        for row in range(len(out)):
            library().un_unpack_row(self.address, row, out[row].ctypes.data)
        return out.reshape(-1).view(np.uint8)[offset : offset + nbytes]


@attrs.define(eq=False)
class NativeMemory:
    """The type of it. Matrices that products read are packed when they are stored."""

    engine: Engine
    # names of weights that products read, and gathers; `op_supported` notes them
    factors: set[str] = attrs.field(factory=set)
    tables: set[str] = attrs.field(factory=set)
    alignment: int = 64
    max_size: int = 1 << 62
    is_host: bool = True
    separate: bool = False
    in_place: bool = True

    def note(self, node: Tensor) -> None:
        """That this node will read its weight as a matrix."""
        assert node.op is not None
        storage = node.inputs[0].storage if node.inputs else node
        if storage.role is Role.WEIGHT and node.op.name in (*PRODUCTS, "get_rows"):
            (self.factors if node.op.name in PRODUCTS else self.tables).add(storage.name)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, tensor: Tensor) -> DType:
        caches = tensor.name.startswith(("k_cache.", "v_cache."))
        return F16 if caches and tensor.dtype is F32 else tensor.dtype

    def allocate(self, nbytes: int, usage: str) -> NativeBuffer:
        return NativeBuffer(_fresh(nbytes, usage, self.alignment))

    def store(self, tensor: Tensor, array: np.ndarray) -> NativeWeight:
        raw = np.ascontiguousarray(array)
        flat = raw.reshape(-1).view(np.uint8)
        product, matrix = tensor.name in self.factors, tensor.name in self.tables
        # what is only gathered from stays as it is where its rows can be read
        wanted = product or (matrix and tensor.dtype not in READABLE)
        if wanted and raw.size and self.engine.packs(tensor.dtype):
            packed = self._pack(tensor, raw)
            if packed is not None:
                return packed
            what = "is not packed, its values are too uneven: products in float32"
            log.warning("the weight %s %s", tensor.name, what)
        if product or matrix or tensor.dtype.numpy in (np.float32, np.int32):
            hand_over_table(tensor.dtype)
            return NativeWeight(flat, tensor)
        values = np.ascontiguousarray(dequantise(raw, tensor.dtype), np.float32)
        return NativeWeight(values.reshape(-1).view(np.uint8), tensor, converted=True)

    def _pack(self, tensor: Tensor, raw: np.ndarray) -> NativeWeight | None:
        """The weight in its packed layout; None where a value does not fit into it."""
        *stack, rows, cols = tensor.shape
        struct = np.zeros(1, WEIGHT)
        weight = struct[0]
        form = self.engine.format(tensor.dtype)
        weight["format"] = ctypes.addressof(form)
        weight["rows"], weight["cols"] = rows, cols
        weight["count"] = int(np.prod(stack))
        weight["groups"] = groups = -(-rows // LANES)
        blocks = -(-cols // form.block)
        weight["group_bytes"] = LANES * form.bytes * blocks
        weight["nodes"] = 1
        weight["first"][1] = groups
        size = int(weight["count"] * groups * weight["group_bytes"])
        memory = _fresh(size, "weight", 64)
        weight["data"][0] = memory.ctypes.data
        kept = None if tensor.dtype.quantised else raw.reshape(-1).view(np.uint8)
        packed = NativeWeight(memory, tensor, struct, kept)
        stride = tensor.dtype.row_bytes(cols)
        fits = library().un_pack(self.engine.handle, packed.address, raw.ctypes.data, stride)
        return packed if fits else None


def _fresh(nbytes: int, usage: str, alignment: int) -> np.ndarray:
    """Memory that nobody has touched, aligned."""
    try:
        if nbytes >= _LARGE:
            area = mmap.mmap(-1, nbytes + _LARGE)
            memory = np.frombuffer(area, np.uint8)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                area.madvise(mmap.MADV_HUGEPAGE)
            alignment = _LARGE
        else:
            memory = np.empty(nbytes + alignment, np.uint8)
    except (OSError, MemoryError, ValueError, OverflowError) as error:
        msg = f"there is no room for {nbytes} bytes of {usage} memory"
        do = "use a smaller --ctx, or --kv q8_0"
        raise OutOfMemoryError(msg, got=nbytes, do=do) from error
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]
