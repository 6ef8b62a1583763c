"""Weights: as the file maps them, packed for products, or as float32 for everything else.

Whoever compiles a step asks for the form that its kernel reads; each form is made once, at the
first question. Matrices are packed when they are stored already, so that the time and the memory
are spent while a model is loaded; the file's pages are given back as they have been read.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer

from umbel_numa.library import LANES, WEIGHT, library
from umbel_numa.operations.products import READABLE, hand_over_table

if TYPE_CHECKING:
    from umbel_numa.engine import Engine

log = logging.getLogger("umbel")

_LARGE = 1 << 21  # bytes from which on memory is mapped by itself, in huge pages where offered


@attrs.define(eq=False)
class NativeWeight:
    """A weight of a model or a constant of a graph."""

    tensor: Tensor
    raw: np.ndarray  # as the file has it, contiguous
    engine: Engine
    struct: np.ndarray | None = None  # un_weight, when packed
    _memory: np.ndarray | None = None  # what the struct points to
    _unpackable: bool = False
    _values: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """What it takes beside the file."""
        parts = [part for part in (self._memory, self._values) if part is not None]
        return sum(part.nbytes for part in parts) or int(self.raw.nbytes)

    @property
    def handle(self) -> int:
        """The address of what the file has."""
        return int(self.raw.ctypes.data)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.map("r")[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        msg = f"the weight {self.tensor.label} is written once"
        raise RuntimeError(msg)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.raw.reshape(-1).view(np.uint8)

    # the forms

    def packed(self) -> int:
        """The address of its un_weight; 0 where it is multiplied as it is."""
        if self.struct is None and not self._unpackable:
            self._pack()
        return 0 if self.struct is None else int(self.struct.ctypes.data)

    def rows(self) -> int:
        """The address of rows that can be read as they are; 0 where they have to be packed."""
        if self.tensor.dtype not in READABLE:
            return 0
        hand_over_table(self.tensor.dtype)
        return self.handle

    def values(self) -> int:
        """The address of its values as float32 or int32."""
        if self.tensor.dtype.numpy in (np.float32, np.int32):
            return self.handle
        if self._values is None:
            self._values = np.ascontiguousarray(
                dequantise(self.raw, self.tensor.dtype), np.float32
            )
        return int(self._values.ctypes.data)

    def _pack(self) -> None:
        """The packed layout, unless there is none, no memory for it, or no room in it for the
        values."""
        dtype, shape = self.tensor.dtype, self.tensor.shape
        self._unpackable = True
        if len(shape) < 2 or not self.raw.size or not self.engine.packs(dtype):
            return
        form, struct = self.engine.format(dtype), np.zeros(1, WEIGHT)
        weight, (*stack, rows, cols) = struct[0], shape
        weight["format"] = ctypes.addressof(form)
        weight["rows"], weight["cols"], weight["count"] = rows, cols, int(np.prod(stack))
        weight["groups"] = groups = -(-rows // LANES)
        weight["group_bytes"] = LANES * form.bytes * -(-cols // form.block)
        weight["nodes"], weight["first"][1] = 1, groups
        try:
            nbytes = int(weight["count"] * groups * weight["group_bytes"])
            memory = self.engine.slabs.take(nbytes)
        except OutOfMemoryError:
            if self.rows():
                log.warning("no memory to pack %s: it is used as it is", self.tensor.label)
                return
            raise
        weight["data"][0] = memory.ctypes.data
        arguments = struct.ctypes.data, self.handle, dtype.row_bytes(cols)
        if not library().un_pack(self.engine.handle, *arguments):
            what = "is not packed, its values are too uneven: products in float32"
            log.warning("the weight %s %s", self.tensor.label, what)
            return
        self.struct, self._memory, self._unpackable = struct, memory, False
        if _of_a_file(self.raw):  # what was read is the kernel's to keep or to drop
            library().un_pages_drop(self.handle, self.raw.nbytes)


def _of_a_file(array: np.ndarray) -> bool:
    """Whether it is a window on a mapped file that nobody can write to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap)


def fresh(nbytes: int, usage: str, alignment: int = 64) -> np.ndarray:
    """Memory that nobody has touched, aligned; large pieces in huge pages where offered."""
    try:
        if nbytes >= _LARGE:
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones have no huge pages
            area = mmap.mmap(-1, nbytes + _LARGE, flags=private)
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
