"""Tensors, operations and graphs: what is to be computed, before anyone says where.

A graph is a list of tensors in the order of their computation. A tensor is a leaf (input,
weight, state or constant) or the result of one operation. Shapes are in NumPy order (the last
axis is contiguous), strides are in bytes, at most four axes. Nothing here knows an operation by
name: the builder is handed operation objects.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import attrs
import numpy as np

from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME, DType

MAX_AXES = 4
MASKED = -30000.0  # what hides a position in an attention mask: finite, and so in float16 too

Shape = tuple[int, ...]


class Role(enum.Enum):
    """What a tensor is to the one who runs the graph."""

    INPUT = "input"  # written by the host before each step
    WEIGHT = "weight"  # from the model file, written once
    STATE = "state"  # lives on between steps: KV cache, recurrent state
    CONST = "const"  # known when the graph is built
    NODE = "node"  # computed
    __hash__ = object.__hash__  # enum's own is written in Python


@attrs.frozen
class Spec:
    """What a shape rule says of the result; a view's also says where it lies in input 0."""

    shape: Shape
    dtype: DType
    strides: tuple[int, ...] | None = None
    offset: int = 0


@attrs.frozen(eq=False)
class Operation:
    """One operation: its shape rule, its definition of truth, and the same from simpler ones.

    infer(*inputs, **attrs) -> Spec            raises GraphError; inputs are Tensors
    reference(*arrays, **attrs) -> array       NumPy, float32 in and out (integers as they are)
    decompose(builder, node, dtype) -> Tensor  the same from simpler operations, safe in `dtype`
    rows_form(builder, node, dtype) -> RowsForm  the same without a write to state
    vjp(builder, node, gradient) -> Tensors    the gradients of the inputs
    """

    name: str
    infer: Callable[..., Spec]
    reference: Callable[..., np.ndarray]
    decompose: Callable[[Builder, Tensor, DType], Tensor] | None = None
    rows_form: Callable[[Builder, Tensor, DType], RowsForm] | None = None
    vjp: Callable[[Builder, Tensor, Tensor], Sequence[Tensor | None]] | None = None
    view: bool = False  # the result is a window on input 0: nothing is computed
    writes: bool = False  # the result is input 0 itself, changed in place
    in_place: bool = False  # elementwise: the result may take the memory of an input like it
    mutates: tuple[int, ...] = ()  # inputs that are changed in place: the reference gets these
    # as they are stored

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@attrs.frozen(eq=False)
class Tensor:
    """One value of the graph: a leaf, or the result of `op` on `inputs`."""

    shape: Shape
    dtype: DType
    role: Role = Role.NODE
    name: str = ""
    op: Operation | None = None
    inputs: tuple[Tensor, ...] = ()
    attrs: Mapping[str, Any] = attrs.field(factory=dict)
    strides: tuple[int, ...] = ()
    base: Tensor | None = None  # the tensor whose memory this one shares
    offset: int = 0  # bytes from the start of that memory
    data: np.ndarray | None = None  # of a constant

    def __attrs_post_init__(self) -> None:
        if len(self.shape) > MAX_AXES:
            msg = f"{self.label}: too many axes"
            raise GraphError(msg, expected=f"at most {MAX_AXES}", got=self.shape)
        if not self.strides:
            object.__setattr__(self, "strides", contiguous(self.shape, self.dtype))

    @property
    def label(self) -> str:
        return self.name or (self.op.name if self.op else self.role.value)

    @property
    def storage(self) -> Tensor:
        """The tensor that owns the memory: itself, or what it is (in the end) a view of."""
        return self if self.base is None else self.base

    @property
    def content(self) -> Hashable:
        """What tells one leaf of a role from another: its name, or a constant's values."""
        if self.data is None:
            return self.name
        return self.shape, self.dtype, self.data.tobytes()

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the values when they lie contiguously."""
        *rows, row = self.shape or (1,)
        return math.prod(rows) * self.dtype.row_bytes(row)

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<{self.label} {list(self.shape)} {self.dtype}>"


def _key(
    op: Operation, inputs: Iterable[Tensor], attributes: Mapping[str, Any], dtype: DType | None
) -> Hashable:
    """What is the same for equal subexpressions."""
    return op, *map(id, inputs), frozenset(attributes.items()), dtype


@lru_cache(1 << 12)
def contiguous(shape: Shape, dtype: DType) -> tuple[int, ...]:
    """Strides in bytes of a tensor without gaps; the last is that of a block."""
    if not shape:
        return ()
    strides = [dtype.block_bytes, dtype.row_bytes(shape[-1])]
    for n in reversed(shape[1:-1]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)]))


RowWrite = tuple[Tensor, Tensor, Tensor]  # (state, new rows, row numbers)


@attrs.frozen(eq=False)
class RowsForm:
    """An operation on state where a device cannot scatter: the plan writes the rows later."""

    result: Tensor
    writes: tuple[RowWrite, ...]


@attrs.frozen(eq=False)
class Graph:
    """Tensors in order of computation; what must be readable afterwards is in `outputs`.

    `outputs` also lists the writes to state that nothing else reads: they are effects.
    """

    nodes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def leaves(self, role: Role) -> list[Tensor]:
        read = [*(t for node in self.nodes for t in node.inputs), *self.outputs]
        return list(dict.fromkeys(t for t in read if t.role is role))


class Builder:
    """Appends nodes to a graph; every operation of `ops` is a method: `b.add(x, y)`.

    Equal subexpressions become one node. Keyword arguments are the operation's attributes,
    which must be hashable; `name` names the result.
    """

    def __init__(self, ops: Mapping[str, Operation]) -> None:
        self.ops = ops
        self.nodes: list[Tensor] = []
        self._known: dict[Any, Tensor] = {}

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        op = self.ops.get(name)
        if op is None:
            msg = f"no operation is called {name!r}"
            raise AttributeError(msg)
        return partial(self.apply, op)

    def apply(
        self,
        op: Operation,
        *inputs: Tensor | None,
        name: str = "",
        stored_as: DType | None = None,
        **attributes: Any,
    ) -> Tensor:
        """The result of `op`; trailing inputs that are None are left out.

        `stored_as` keeps the result in another float dtype than the shape rule says.
        """
        given = tuple(t for t in inputs if t is not None)
        if given != inputs[: len(given)]:
            msg = "only trailing inputs of an operation can be left out"
            raise GraphError(msg, got=inputs)
        key = _key(op, given, attributes, stored_as)
        known = self._known.get(key)
        if known is not None and not op.writes:
            return known
        try:
            spec = op.infer(*given, **attributes)
        except TypeError as error:
            msg = f"{op.name}: the inputs or attributes are not those that it has"
            raise GraphError(msg, got=error) from error
        base = given[0].storage if op.view or op.writes else None
        offset = spec.offset + given[0].offset if base is not None else 0
        strides = given[0].strides if op.writes else spec.strides or ()
        node = Tensor(
            shape=spec.shape,
            dtype=stored_as or spec.dtype,
            name=name,
            op=op,
            inputs=given,
            attrs=attributes,
            strides=strides,
            base=base,
            offset=offset,
        )
        self.nodes.append(node)
        self._known[key] = node
        return node

    def keep(self, node: Tensor) -> Tensor:
        """A node of another builder whose inputs are this one's, or what is its equal here."""
        assert node.op is not None
        key = _key(node.op, node.inputs, node.attrs, node.dtype)
        known = node if node.op.writes else self._known.setdefault(key, node)
        if known is node:
            self.nodes.append(node)
        return known

    def leaf(self, role: Role, name: str, shape: Shape, dtype: DType) -> Tensor:
        """An input, weight or state; asked for again by the same name, the same tensor."""
        known = self._known.get((role, name))
        if known is None:
            known = self._known[role, name] = Tensor(shape, dtype, role, name)
        elif (known.shape, known.dtype) != (shape, dtype):
            msg = f"{role.value} {name!r} is declared twice, differently"
            raise GraphError(msg, expected=known, got=f"{list(shape)} {dtype}")
        return known

    def const(self, array: np.ndarray, name: str = "") -> Tensor:
        """A constant: float32 or int32 values that are part of the graph."""
        dtype = BY_NAME["i32" if array.dtype.kind in "iu" else "f32"]
        data = np.ascontiguousarray(array, dtype.numpy)
        const = Tensor(data.shape, dtype, Role.CONST, name or "const", data=data)
        return self._known.setdefault(const.content, const)

    def graph(self, outputs: Iterable[Tensor]) -> Graph:
        """The graph of what `outputs` need, in the order it was built."""
        wanted = tuple(outputs)
        needed = set(wanted)
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(node.inputs)
        return Graph(tuple(n for n in self.nodes if n in needed), wanted)
