"""A split of a graph as a native program: steps with addresses, strides and attributes.

Each operation has a function here that lays out its attributes as its kernel documents them.
All threads meet before a step that reads or overwrites what was touched since they last met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from umbel.gguf.types import I32
from umbel.graph import Tensor
from umbel.hookspecs import SplitGraph

from umbel_numa.fuse import Fuser, Linear, Range, Turned, overlap
from umbel_numa.heads import Head, deal, dealt, head_of, heads_of
from umbel_numa.library import INPUTS, STEP, TENSOR, operations
from umbel_numa.operations import ATTRIBUTES
from umbel_numa.operations.attention import attention, partial_bytes, rope_table
from umbel_numa.operations.products import PRODUCTS, first_row
from umbel_numa.program import Compiled
from umbel_numa.weights import NativeWeight

if TYPE_CHECKING:
    from umbel_numa.engine import Engine

WIDTHS = (4, 1, 4)  # bytes of a prepared activation, by form: UN_ACT_F32, _I8, _I16
USES = {("mul_mat", 0): "product", ("mul_mat_dense", 0): "product"}
USES |= {("mul_mat_id", 0): "product", ("get_rows", 0): "rows"}
_WDATA = 1 << 60  # where the activations lie among the addresses, to tell them apart
_ALIGN = 64


def compile_split(graph: SplitGraph, engine: Engine) -> Compiled:
    """The split as steps."""
    nodes = [node for node in graph.nodes if node.op is not None and not node.op.view]
    rows = max((_rows(node) for node in nodes if _multiplies(node)), default=0)
    writer = _Writer(graph, engine, engine.count(rows))
    deal(nodes, graph.slots)
    for item in Fuser(nodes, set(graph.outputs), writer.form, writer.place).items():
        if isinstance(item, Linear):
            writer.add_linear(item)
        elif isinstance(item, Turned):
            writer.attend(item.attention, item.rope)
        else:
            writer.add(item)
    return writer.finish()


@attrs.define(eq=False)
class _Writer:
    graph: SplitGraph
    engine: Engine
    threads: int  # that take part
    steps: list[tuple[Any, ...]] = attrs.field(factory=list)  # as STEP has them
    tensors: list[tuple[Any, ...] | np.void] = attrs.field(factory=list)  # as TENSOR has them
    names: list[str] = attrs.field(factory=list)  # of the steps' operations
    numbers: dict[tuple[Tensor, str | Head], int] = attrs.field(factory=dict)
    places: dict[Tensor, Range] = attrs.field(factory=dict)
    matrices: dict[tuple[Tensor, str], int] = attrs.field(factory=dict)
    prepared: dict[tuple[object, ...], Range] = attrs.field(factory=dict)
    turns: dict[tuple[object, ...], Range] = attrs.field(factory=dict)  # tables of rope
    partial: Range = (0, 0)  # what one attention leaves at a time
    ring: int = attrs.field(init=False)  # bytes for prepared activations, used in turn
    next: int = 0
    wdata: int = attrs.field(init=False)  # bytes of a node for a step, the ring's first
    read: list[Range] = attrs.field(factory=list)  # since the threads last met
    written: list[Range] = attrs.field(factory=list)

    @wdata.default
    def _first(self) -> int:
        return self.ring

    @ring.default
    def _most(self) -> int:
        read = (node.inputs[1] for node in self.graph.nodes if _multiplies(node))
        return 2 * max((_prepared_bytes(x, 0) for x in read), default=0)

    # tensors

    def number(self, t: Tensor, use: str | Head = "") -> int:
        """The number of a tensor in the program, as a product, a gather ("rows") or anything
        else reads it; or of what belongs to one head."""
        weight = isinstance(self.graph.slots[t.storage].buffer, NativeWeight)
        key = t, use if weight or isinstance(use, Head) else ""
        if key not in self.numbers:
            self.numbers[key] = len(self.tensors)
            self.tensors.append(self._tensor(t, use))
        return self.numbers[key]

    def _tensor(self, t: Tensor, use: str | Head) -> tuple[Any, ...] | np.void:
        slot = self.graph.slots[t.storage]
        buffer, pad = slot.buffer, 4 - len(t.shape)
        kind, weight, strides = t.dtype.number, 0, t.strides
        if not isinstance(buffer, NativeWeight):
            start = buffer.handle + slot.offset + t.offset
        elif use and isinstance(use, str):
            weight = self._matrix(t, use)
            start = 0 if weight else buffer.rows() + t.offset
        elif t.dtype.numpy and t.dtype.numpy.itemsize == 4:
            start = buffer.handle + slot.offset + t.offset
        else:
            kind, strides = 0, _of_floats(t)
            start = buffer.values() + _float_offset(t)
        outermost = t.shape[0] * strides[0] if t.shape else t.dtype.block_bytes
        sizes, steps = (1,) * pad + t.shape, (outermost,) * pad + strides
        fields = start, sizes, steps, kind, len(t.shape), weight
        if isinstance(use, Head):
            return head_of(np.array([fields], TENSOR)[0], t, buffer, use)
        return heads_of(np.array([fields], TENSOR)[0], t, buffer) if dealt(buffer) else fields

    def _matrix(self, w: Tensor, use: str) -> int:
        """The address of the packed form that a product or a gather reads; 0: of none."""
        key = w.storage, use
        if key not in self.matrices:
            buffer = self.graph.slots[w.storage].buffer
            self.matrices[key] = 0
            if isinstance(buffer, NativeWeight) and not (use == "rows" and buffer.rows()):
                self.matrices[key] = buffer.packed()
        return self.matrices[key]

    def form(self, w: Tensor) -> int | None:
        """How a packed weight wants activations; None: it is none, or only a part of one."""
        packed = w.base is None and len(w.shape) == 2 and self._matrix(w, "product")
        return self.engine.form(w.dtype) if packed else None

    def place(self, t: Tensor) -> Range:
        """All that the tensor's storage covers: views of one storage count as one."""
        storage = t.storage
        if storage not in self.places:
            slot = self.graph.slots[storage]
            start = slot.buffer.handle + slot.offset
            self.places[storage] = start, start + max(storage.nbytes, 1)
        return self.places[storage]

    # steps

    def add(self, node: Tensor) -> None:
        """The step or steps of a node."""
        assert node.op is not None
        name = node.op.name
        special: dict[str, Callable[[Tensor], None]]
        special = {"kv_attention": self.attend, "rope": self._rope}
        if name in ("get_rows", "set_rows") and self._dealt(node.inputs[0]):
            self._each_head(node)
            return
        special |= dict.fromkeys(PRODUCTS, self._product)
        if name in special:
            special[name](node)
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
        *,
        factors: Sequence[int] = (),
        plain: bool = True,
        head: Head | None = None,
    ) -> None:
        """Appends a step; it reads its inputs and writes `out`, where that is `plain`. Inputs
        `factors` are weights of products. Of floats what belongs to `head` is touched."""
        made = -1 if out is None else self.number(out, head or "")
        uses: list[str | Head] = [USES.get((name, i), "") for i in range(len(inputs))]
        if head:
            uses = ["" if t.dtype is I32 else head for t in inputs]
        for i in factors:
            uses[i] = "product"
        read = tuple(map(self.number, inputs, uses))
        reads, writes = [*reads], [*writes]
        if plain:
            reads += [self.place(t) for t in inputs if not _constant(t)]
        if plain and out is not None:
            mutated = out.op.mutates if out.op else ()
            writes += [self.place(out), *(self.place(out.inputs[i]) for i in mutated)]
        fields = _filled(read, INPUTS), 0, _filled(numbers, 8), _filled(values, 8)
        meet = self._meet(reads, writes)
        self.steps.append((operations()[name], meet, len(read), made, *fields))
        self.names.append(name)

    def _meet(self, reads: Sequence[Range], writes: Sequence[Range]) -> bool:
        """Whether all threads have to meet first; keeps the books."""
        meet = overlap(writes, self.written) or overlap(writes, self.read)
        meet = meet or overlap(reads, self.written)
        if meet:
            self.read, self.written = [], []
        self.read += reads
        self.written += writes
        return meet

    def _product(self, node: Tensor) -> None:
        """A product with a weight, packed (then x is prepared before) or as its rows lie."""
        assert node.op is not None
        w, x = node.inputs[:2]
        name = node.op.name
        if not self._matrix(w, "product"):
            dense = "mul_mat_dense" if name == "mul_mat" else name
            self.step(dense, node, node.inputs)
            return
        form = self.engine.form(w.dtype)
        where = self._prepare((x,), form)
        numbers = (where[0] - _WDATA, form, first_row(w))
        self.step(name, node, node.inputs, numbers, reads=[where])

    def add_linear(self, linear: Linear) -> None:
        """Products with one x. One row, side by side, each thread prepares for itself: to wait
        for the one that does it would take as long. Others are prepared once for each node."""
        form = self.form(linear.products[0].node.inputs[0])
        assert form is not None
        x, norm, glu, outs = linear.x, linear.norm, linear.glu, linear.outs
        eps = norm.attrs["eps"] if norm else 0.0
        normed = (x, norm.inputs[1]) if norm else (x,)
        places = [self.place(out) for out in outs]
        row = x.size == x.shape[-1] and x.strides[-1] == x.dtype.block_bytes
        alone = row and not overlap([self.place(x)], places)
        where = None if alone else self._prepare(normed, form, eps)
        inputs = list(normed) if alone else []
        factors = range(len(inputs), len(inputs) + 3 * len(linear.products), 3)
        for p in linear.products:
            inputs += [p.node.inputs[0], p.out, p.add or p.out]
        adds = sum(1 << i for i, p in enumerate(linear.products) if p.add is not None)
        kind = operations()[glu.op.name] if glu and glu.op else -1
        start = -1 if where is None else where[0] - _WDATA
        size = x.size // x.shape[-1], x.shape[-1]
        numbers = (start, form, len(linear.products), kind, bool(norm), adds, *size)
        reads = [self.place(t) for t in (x, *(p.add for p in linear.products)) if t is not None]
        reads = reads if where is None else [*reads[1:], where]
        how = reads, places
        self.step("linear", glu, inputs, numbers, (eps,), *how, factors=factors, plain=False)

    def _prepare(self, normed: tuple[Tensor, ...], form: int, eps: float = 0.0) -> Range:
        """Where the values of x, or of x normed, lie as a product wants them."""
        x, key = normed[0], (*normed, form)
        if key not in self.prepared:
            here = self._in_turn(_prepared_bytes(x, form))
            numbers = (here[0] - _WDATA, form, len(normed) > 1)
            self.step("prepare", None, normed, numbers, (eps,), writes=[here])
            self.prepared[key] = here
        return self.prepared[key]

    def _in_turn(self, size: int) -> Range:
        """A place for prepared activations; what was there before is prepared anew when it is
        wanted again. Two of the largest fit, so that the next seldom waits for the last."""
        if self.next + size > self.ring:
            self.next = 0
        start = _WDATA + self.next
        here = start, start + size
        self.next += -(-size // _ALIGN) * _ALIGN
        kept = {k: r for k, r in self.prepared.items() if not overlap([here], [r])}
        self.prepared = kept
        return here

    def _reserve(self, size: int) -> Range:
        """So many bytes of the memory that each node has for a step."""
        start = _WDATA + self.wdata
        self.wdata += -(-size // _ALIGN) * _ALIGN
        return start, start + size

    def attend(self, node: Tensor, rope: Tensor | None = None) -> None:
        """The new keys, which `rope` turns, and values go to the caches; then all attend, maybe
        in two steps."""
        q, k, v, k_cache, v_cache, cells, *others = node.inputs
        caches = k_cache, v_cache
        alone = self._dealt(k_cache)
        writes, turn, how = [self.place(t) for t in caches], list[Range](), tuple[int, ...]()
        if rope is not None:
            table, how = self._turn(rope)
            turn, keys = [table], rope.inputs[0]
        else:
            keys = k
        self.step("kv_store", None, (keys, v, cells, *caches), how, reads=turn, writes=writes)
        inputs, values = (q, *caches, *others), attention(node)
        size, reads = partial_bytes(node, self.threads), list[Range]()
        if size:
            if self.partial[1] - self.partial[0] < size:
                self.partial = self._reserve(size)
            reads = [self.partial]
        numbers = (k.shape[2], self.partial[0] - _WDATA if size else -1, alone)
        self.step("kv_attention", node, inputs, numbers, values, writes=reads)
        if size:
            self.step("kv_merge", node, inputs, numbers, values, reads=reads)

    def _dealt(self, t: Tensor) -> bool:
        return dealt(self.graph.slots[t.storage].buffer)

    def _each_head(self, node: Tensor) -> None:
        """A gather from a cache whose heads were dealt over nodes, or a write to it."""
        state = node.inputs[0]
        assert node.op is not None
        for head in Head.all(self.graph.slots[state.storage].buffer):
            self.step(node.op.name, node, node.inputs, head=head)

    def _rope(self, node: Tensor) -> None:
        at, numbers = self._turn(node)
        self.step("rope", node, node.inputs[:1], numbers, reads=[at])

    def _turn(self, node: Tensor) -> tuple[Range, tuple[int, ...]]:
        """The table that all ropes of its kind share, and the integers of a step with it."""
        _, *where = node.inputs
        table = rope_table(node)
        if (key := (*where, *table)) not in self.turns:
            size = 4 * where[0].size * table[0]
            self.turns[key] = to = self._reserve(size)
            numbers = (table[0], to[0] - _WDATA, *table[1:])
            self.step("rope_cos_sin", None, where, numbers, writes=[to])
        at = self.turns[key]
        return at, (table[0], at[0] - _WDATA, node.attrs["mode"] == "norm")

    def finish(self) -> Compiled:
        steps, tensors = np.array(self.steps, STEP), np.array(self.tensors, TENSOR)
        read = {node.inputs[0].storage for node in self.graph.nodes if _multiplies(node)}
        buffers = (self.graph.slots[t].buffer for t in read)
        factors = tuple(b for b in buffers if isinstance(b, NativeWeight))
        names = tuple(self.names)
        return Compiled(self.graph, steps, names, tensors, self.wdata, self.threads, factors)


def _filled(values: Sequence[float], n: int) -> tuple[float, ...]:
    return (*values, *(0,) * (n - len(values)))


def _of_floats(t: Tensor) -> tuple[int, ...]:
    """The strides of a tensor whose storage is held as float32; of a quantised one the last is
    that of a block."""
    scaled = [s * t.dtype.block * 4 // t.dtype.block_bytes for s in t.strides]
    return (*scaled[:-1], scaled[-1] // t.dtype.block) if t.strides else ()


def _float_offset(t: Tensor) -> int:
    return t.offset * t.dtype.block * 4 // t.dtype.block_bytes


def _rows(node: Tensor) -> int:
    """With how many rows a product multiplies one matrix, at most: the experts of a token are
    matrices of their own."""
    assert node.op is not None
    x = node.inputs[1].shape
    return x[0] if node.op.name == "mul_mat_id" else math.prod(x[:-1])


def _multiplies(node: Tensor) -> bool:
    return node.op is not None and node.op.name in ("mul_mat", "mul_mat_id")


def _prepared_bytes(x: Tensor, form: int) -> int:
    """What the activations of `un_act` take: values, scales, and sums."""
    rows, blocks = math.prod(x.shape[:-1]), -(-x.shape[-1] // 32)
    return rows * blocks * (32 * WIDTHS[form] + 12)


def _constant(t: Tensor) -> bool:
    return t.storage.role.value in ("weight", "const")
