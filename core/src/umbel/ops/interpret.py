"""The plain interpreter: every node by its reference, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from umbel.errors import GraphError
from umbel.gguf.quants import dequantise
from umbel.gguf.types import F32, DType
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.ops.elementwise import cast
from umbel.ops.rules import Array, is_number

_WRITTEN = {"kv_attention": (3, 4)}


def written(op: Operation) -> tuple[int, ...]:
    """Which inputs the reference of `op` changes in place: these it gets as they are stored."""
    return (0,) if op.writes else _WRITTEN.get(op.name, ())


def evaluate(
    wanted: Graph | Iterable[Tensor], feeds: Mapping[Tensor, Array], *, dtype: DType = F32
) -> list[Array]:
    """The values of the outputs; state among `feeds` is changed in place.

    Quantised tensors are fed as their bytes, as `GGUFFile.array` gives them. With another
    `dtype` every value on the way is rounded to it, which is the best that a device computing
    in that dtype can do.
    """
    graph = wanted if isinstance(wanted, Graph) else _graph(tuple(wanted))
    run = _Run(feeds, dtype)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            run.compute(node)
        return [run.as_stored(t) for t in graph.outputs]


def _graph(outputs: tuple[Tensor, ...]) -> Graph:
    """What the outputs need, inputs before what reads them."""
    order: dict[Tensor, None] = {}
    pending = [(t, False) for t in reversed(outputs)]
    while pending:
        tensor, ready = pending.pop()
        if ready:
            order[tensor] = None
        elif tensor.op is not None and tensor not in order:
            pending.append((tensor, True))
            pending.extend((t, False) for t in reversed(tensor.inputs))
    return Graph(tuple(order), outputs)


class _Run:
    """The values of one evaluation."""

    def __init__(self, feeds: Mapping[Tensor, Array], dtype: DType) -> None:
        self.feeds = feeds
        self.dtype = dtype
        self.stored: dict[Tensor, Array] = {}

    def compute(self, node: Tensor) -> None:
        op = node.op
        assert op is not None
        raw = written(op)
        arguments = [
            self.as_stored(t) if i in raw or (op.view and _sliceable(t)) else self.as_read(t)
            for i, t in enumerate(node.inputs)
        ]
        result = op.reference(*arguments, **node.attrs)
        self.stored[node] = result if op.view or op.writes else self.rounded(node, result)

    def rounded(self, t: Tensor, values: Array) -> Array:
        """As the memory of `t` would hold the values, were it in the dtype of the run."""
        if values.dtype.kind != "f" or t.dtype.quantised:
            return values
        for dtype in {t.dtype, self.dtype} - {F32}:
            values = cast(values, dtype=dtype.name)
        return values

    def as_stored(self, t: Tensor) -> Array:
        if t not in self.stored:
            if t.data is None and t not in self.feeds:
                msg = f"{t.role.value} {t.label!r} is not fed"
                raise GraphError(msg, got=t)
            values = self.feeds[t] if t.data is None else t.data
            self.stored[t] = values if t.role is Role.STATE else self.rounded(t, values)
        return self.stored[t]

    def as_read(self, t: Tensor) -> Array:
        """float32, or integers as they are."""
        values = self.as_stored(t)
        if values.dtype == np.float32 or not is_number(t):
            return values
        if values.dtype.kind == "f":
            return values.astype(np.float32)
        return dequantise(values, t.dtype)


def _sliceable(t: Tensor) -> bool:
    return t.dtype.numpy is not None or t.storage.role is Role.STATE
