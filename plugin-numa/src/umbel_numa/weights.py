"""Weights: as the file maps them, packed for products, or as float32 for everything else.

Whoever compiles a step asks for the form that its kernel reads; each form is made once, at the
first question. Matrices are packed when they are stored already, so that the time and the
memory are spent while a model is loaded; the file's pages are given back as they have been
read.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import mmap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer

from umbel_numa.cut import cut
from umbel_numa.library import LANES, WEIGHT, library, no_threads
from umbel_numa.operations.products import READABLE, hand_over_table
from umbel_numa.pages import page_size
from umbel_numa.resident import Segment
from umbel_numa.topology import ANYWHERE

if TYPE_CHECKING:
    from umbel_numa.engine import Engine

log = logging.getLogger("umbel")

_LARGE = 1 << 20  # bytes of a weight that are worth moving
# What is told of weights that are not as they should be.
_NO_ROOM = "there is no memory to pack %s: products read the file as it is, and take far longer"
_UNEVEN = "the values of %s are too uneven to be packed: products in float32"
_ELSEWHERE = "pages of %s stay on another node than the one that reads them"


@attrs.define(eq=False)
class NativeWeight:
    """A weight of a model or a constant of a graph."""

    tensor: Tensor
    raw: np.ndarray  # as the file has it, contiguous
    engine: Engine
    file: mmap.mmap | None = None  # where it comes from
    struct: np.ndarray | None = None  # un_weight, when packed
    chosen: np.ndarray | None = None  # of packed experts, how often, while that is counted
    segments: tuple[Segment, ...] = ()  # what products read, by node
    notes: list[str] = attrs.field(factory=list)  # to `tell`
    number: int = attrs.field(factory=itertools.count().__next__)  # of all, as they came
    _unpackable: bool = False
    _values: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """What it takes beside the file; where that is nothing, there."""
        packed = sum(s.nbytes for s in self.segments) if self.struct is not None else 0
        values = 0 if self._values is None else self._values.nbytes
        return packed + values or int(self.raw.nbytes)

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
        """The address of rows that are read as they are; 0 where the packed ones are better."""
        if self.tensor.dtype not in READABLE and not self._unpackable:
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
        weight["rows"], weight["cols"], weight["count"] = rows, cols, math.prod(stack)
        weight["groups"] = -(-rows // LANES)
        weight["group_bytes"] = LANES * form.bytes * -(-cols // form.block)
        try:
            segments = self._room(weight)
        except OutOfMemoryError:
            self.notes.append(_NO_ROOM)
            return
        arguments = struct.ctypes.data, self.handle, dtype.row_bytes(cols)
        code = library().un_pack(self.engine.handle, *arguments)
        if code < 0:
            raise no_threads(self.engine.threads, code)
        if code:
            for segment in segments:  # of a slab, which others keep
                library().un_pages_drop(segment.memory.ctypes.data, segment.nbytes)
            self.notes.append(_UNEVEN)
            return
        self.struct, self.segments, self._unpackable = struct, segments, False
        if file_of(self.raw) is not None:  # what was read is the kernel's to keep or to drop
            library().un_pages_drop(self.handle, self.raw.nbytes)

    def _room(self, weight: np.void) -> tuple[Segment, ...]:
        """Memory for what each node holds of a packed weight, on that node."""
        count, groups = int(weight["count"]), int(weight["groups"])
        numbers = self.engine.placement.numbers
        parts = self.engine.cut(count, groups, self)
        weight["nodes"], weight["split"] = len(numbers), parts.split
        weight["first"][: len(parts.first)] = parts.first
        segments = []
        self.engine.binder.room.take(sum(parts.held) * int(weight["group_bytes"]), "weight")
        for node, (held, number) in enumerate(zip(parts.held, numbers, strict=True)):
            nbytes = held * int(weight["group_bytes"])
            number = number if len(numbers) > 1 else ANYWHERE
            memory = self.engine.slabs.take(nbytes, "weight", number)
            segment = Segment(memory, node, number)
            weight["data"][node] = segment.memory.ctypes.data
            segments.append(segment)
        return tuple(segments)

    def count(self, wanted: bool) -> None:
        """Of packed experts: begins to count how often each is chosen, or ends it."""
        if self.struct is not None and self.struct["count"][0] > 1:
            self.chosen = np.zeros(self.struct["count"][0], np.int64) if wanted else None
            self.struct["chosen"] = 0 if self.chosen is None else self.chosen.ctypes.data

    # what stays as the file maps it

    def spread(self) -> None:
        """Moves the pages of rows that products read as they are to the nodes whose threads
        read them: of every expert the same rows. Small ones stay where they are.

        In mode mirror, too: each node has what its threads read, and of a copy it would read no
        more.
        """
        numbers, memory = self.engine.placement.numbers, self.map("r")
        if len(numbers) == 1 or memory.size < _LARGE:
            self.segments = (Segment(memory, 0, ANYWHERE),)
            return
        int(memory[:: page_size()].max())  # pages that are not there cannot move
        moved, before, segments = True, 0, list[Segment]()
        for node, end in self._parts(memory.size):
            if end > before:
                segment = Segment(memory[before:end], node, numbers[node])
                moved = self.engine.binder.move(segment.memory, segment.number) and moved
                segments.append(segment)
                before = end
        self.segments = tuple(segments)
        if not moved and not self.engine.binder.refused:
            self.notes.append(_ELSEWHERE)

    def _parts(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Node after node, and again for each expert, where its part ends: with a page, so that
        no page belongs to two."""
        *stack, rows, _ = self.tensor.shape
        row, page = nbytes // math.prod((*stack, rows)), page_size()
        groups = cut(self.engine.shares(), 1, -(-rows // LANES), copies=False, whole=False)
        for matrix in range(math.prod(stack)):
            for node, group in enumerate(groups.first[1:]):
                end = (matrix * rows + min(LANES * group, rows)) * row
                yield node, min(end + -(self.handle + end) % page, nbytes)


def tell(weights: Iterable[NativeWeight]) -> None:
    """What was noted of them: of each file one line for each reason."""
    noted = sorted((w for w in weights if w.notes), key=lambda w: w.number)
    lines: dict[tuple[str, mmap.mmap | None], list[str]] = {}
    for weight in noted:
        for why in weight.notes:
            lines.setdefault((why, weight.file), []).append(weight.tensor.label)
        weight.notes.clear()
    for (why, _), names in lines.items():
        few = len(names) == 1
        log.warning(why, names[0] if few else f"{len(names)} weights ({names[0]}, ...)")


def file_of(array: np.ndarray) -> mmap.mmap | None:
    """The file that it is a window on, which nobody can write to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
