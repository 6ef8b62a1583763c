"""A split of a graph as a native program: steps with addresses, strides and attributes.

Each operation has a function here that lays out its attributes as its kernel documents them.
All threads meet before a step that reads or overwrites what was touched since they last met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from umbel.graph import Tensor
from umbel.hookspecs import SplitGraph

from umbel_numa.library import INPUTS, STEP, TENSOR, operations
from umbel_numa.memory import NativeWeight
from umbel_numa.operations import ATTRIBUTES
from umbel_numa.operations.products import PRODUCTS, first_row

if TYPE_CHECKING:
    from umbel_numa.engine import Engine

Range = tuple[int, int]  # addresses [from, to)
WIDTHS = (4, 1, 4)  # bytes of a prepared activation, by form: UN_ACT_F32, _I8, _I16
_WDATA = 1 << 60  # where the activations lie among the addresses, to tell them apart
_ALIGN = 64


def compile_split(graph: SplitGraph, engine: Engine) -> tuple[np.ndarray, np.ndarray, int]:
    """The steps, their tensors, and the bytes of activations that each node prepares."""
    writer = _Writer(graph, engine)
    for node in graph.nodes:
        assert node.op is not None
        if not node.op.view:
            writer.add(node)
    return writer.finish()


@attrs.define(eq=False)
class _Writer:
    graph: SplitGraph
    engine: Engine
    steps: list[np.void] = attrs.field(factory=list)
    tensors: list[np.void] = attrs.field(factory=list)
    numbers: dict[Tensor, int] = attrs.field(factory=dict)
    prepared: dict[tuple[Tensor, int], Range] = attrs.field(factory=dict)
    wdata: int = 0  # bytes
    read: list[Range] = attrs.field(factory=list)  # since the threads last met
    written: list[Range] = attrs.field(factory=list)

    # tensors

    def number(self, t: Tensor) -> int:
        """The number of a tensor in the program."""
        if t not in self.numbers:
            self.numbers[t] = len(self.tensors)
            self.tensors.append(self._tensor(t))
        return self.numbers[t]

    def _tensor(self, t: Tensor) -> np.void:
        raw: np.void = np.zeros(1, TENSOR)[0]
        slot = self.graph.slots[t.storage]
        buffer, pad = slot.buffer, 4 - len(t.shape)
        raw["n"] = (1,) * pad + t.shape
        outermost = t.shape[0] * t.strides[0] if t.shape else t.dtype.block_bytes
        raw["s"] = (outermost,) * pad + t.strides
        raw["type"], raw["axes"] = t.dtype.number, len(t.shape)
        if isinstance(buffer, NativeWeight) and buffer.address:
            raw["weight"] = buffer.address
            if buffer.rows is not None:
                raw["data"] = buffer.rows.ctypes.data + t.offset
            return raw
        if isinstance(buffer, NativeWeight) and buffer.converted:
            raw["type"], raw["s"] = 0, _float_strides(raw["n"])
        raw["data"] = buffer.map("rw").ctypes.data + slot.offset + t.offset
        return raw

    def _range(self, t: Tensor) -> Range:
        """All that the tensor's storage covers: views of one storage count as one."""
        slot = self.graph.slots[t.storage]
        start = slot.buffer.handle + slot.offset
        return start, start + max(t.storage.nbytes, 1)

    # steps

    def add(self, node: Tensor) -> None:
        """The step or steps of a node."""
        assert node.op is not None
        name = node.op.name
        if name in PRODUCTS:
            self._product(node)
            return
        attributes = ATTRIBUTES.get(name)
        numbers, values = attributes(node) if attributes else ((), ())
        self.step(name, node, node.inputs, numbers, values)

    def step(
        self,
        name: str,
        out: Tensor | None,
        inputs: Sequence[Tensor],
        numbers: Sequence[int] = (),
        values: Sequence[float] = (),
        reads: Sequence[Range] = (),
        writes: Sequence[Range] = (),
    ) -> None:
        step = np.zeros(1, STEP)[0]
        step["op"] = operations()[name]
        step["inputs"] = len(inputs)
        step["out"] = -1 if out is None else self.number(out)
        step["in"] = [*map(self.number, inputs), *[0] * (INPUTS - len(inputs))]
        step["i"][: len(numbers)] = numbers
        step["f"][: len(values)] = values
        reads = [*reads, *(self._range(t) for t in inputs if not _constant(t))]
        writes = [*writes]
        if out is not None:
            writes.append(self._range(out))
            mutated = out.op.mutates if out.op else ()
            writes += [self._range(out.inputs[i]) for i in mutated]
        step["barrier"] = self._meet(reads, writes)
        self.steps.append(step)

    def _meet(self, reads: Sequence[Range], writes: Sequence[Range]) -> bool:
        """Whether all threads have to meet first; keeps the books."""
        meet = _overlap(writes, self.written) or _overlap(writes, self.read)
        meet = meet or _overlap(reads, self.written)
        if meet:
            self.read, self.written = [], []
        self.read += reads
        self.written += writes
        return meet

    def _product(self, node: Tensor) -> None:
        """A product with a weight, packed (then x is prepared before) or as its rows lie."""
        assert node.op is not None
        w, x = node.inputs[:2]
        name, buffer = node.op.name, self.graph.slots[w.storage].buffer
        if not (isinstance(buffer, NativeWeight) and buffer.address):
            dense = "mul_mat_dense" if name == "mul_mat" else name
            self.step(dense, node, node.inputs)
            return
        form = self.engine.form(w.dtype)
        where = self._prepare(x, form)
        numbers = (where[0] - _WDATA, form, first_row(w))
        self.step(name, node, node.inputs, numbers, reads=[where])

    def _prepare(self, x: Tensor, form: int) -> Range:
        """Where the values of x lie as a product wants them."""
        key = x, form
        if key not in self.prepared:
            rows, blocks = math.prod(x.shape[:-1]), -(-x.shape[-1] // 32)
            size = rows * blocks * (32 * WIDTHS[form] + 12)
            start = _WDATA + self.wdata
            self.wdata += -(-size // _ALIGN) * _ALIGN
            self.prepared[key] = start, start + size
            numbers = (start - _WDATA, form)
            self.step("quantise", None, (x,), numbers, writes=[self.prepared[key]])
        return self.prepared[key]

    def finish(self) -> tuple[np.ndarray, np.ndarray, int]:
        steps, tensors = np.array(self.steps, STEP), np.array(self.tensors, TENSOR)
        return steps, tensors, self.wdata


def _float_strides(n: np.ndarray) -> list[int]:
    strides = [4]
    for size in n[:0:-1]:
        strides.append(strides[-1] * int(size))
    return strides[::-1]


def _constant(t: Tensor) -> bool:
    return t.storage.role.value in ("weight", "const")


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
