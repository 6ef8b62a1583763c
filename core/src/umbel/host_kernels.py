"""How the host backend runs a node: its reference, or a faster form of it where that pays.

Each function gets a node and how to find arrays, and returns a step: a call without arguments
that computes into memory whose address is already known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import numpy as np

from umbel.gguf.quants import dequantise, quantise
from umbel.gguf.types import F32, DType
from umbel.graph import Tensor
from umbel.hookspecs import Slot
from umbel.host_attention import cached_attention
from umbel.host_memory import PIECE, HostWeight
from umbel.ops.rows import mul_mat_id

Step = Callable[[], object]
Source = np.ndarray | Callable[[], np.ndarray]  # an array, or a call that makes it at each step


class Arrays:
    """The arrays of one split's tensors, views on their slots."""

    def __init__(self, slots: Mapping[Tensor, Slot]) -> None:
        self.slots = slots

    def weight(self, t: Tensor) -> HostWeight | None:
        """The weight or constant itself; None for a window on one."""
        buffer = self.slots[t.storage].buffer
        return buffer if isinstance(buffer, HostWeight) and t.base is None else None

    def raw(self, t: Tensor) -> np.ndarray:
        """The tensor in its own dtype; rows of bytes where NumPy does not know it."""
        slot = self.slots[t.storage]
        shape, strides, dtype = t.shape, t.strides, t.dtype.numpy
        if dtype is None:
            shape = (*shape[:-1], t.dtype.row_bytes(shape[-1]))
            strides, dtype = (*strides[:-1], 1), np.dtype(np.uint8)
        start = slot.offset + t.offset
        array: np.ndarray = np.ndarray(shape, dtype, slot.buffer.map("rw"), start, strides)
        return array

    def source(self, t: Tensor) -> Source:
        """As a reference reads it: float32, or integers."""
        weight = self.weight(t)
        if weight is not None:
            dense = weight.dense(always=len(t.shape) < 2)
            return partial(weight.values, slice(None)) if dense is None else dense
        raw = self.raw(t)
        if t.dtype is F32 or raw.dtype.kind == "i":
            return raw
        return lambda: dequantise(np.ascontiguousarray(raw), t.dtype)


def compile_node(node: Tensor, arrays: Arrays) -> Step:
    """The step that computes `node`."""
    assert node.op is not None
    special = SPECIAL.get(node.op.name)
    step = special(node, arrays) if special else None
    return step or _by_reference(node, arrays)


def _by_reference(node: Tensor, arrays: Arrays) -> Step:
    op = node.op
    assert op is not None
    reference, attributes = op.reference, dict(node.attrs)
    sources: list[Source] = [
        arrays.raw(t) if i in op.mutates else arrays.source(t)
        for i, t in enumerate(node.inputs)
    ]
    if op.writes:
        return lambda: reference(*map(_now, sources), **attributes)
    store = _storer(arrays.raw(node), node.dtype)
    if all(isinstance(s, np.ndarray) for s in sources):
        return lambda: store(reference(*sources, **attributes))
    return lambda: store(reference(*map(_now, sources), **attributes))


def _now(source: Source) -> np.ndarray:
    return source if isinstance(source, np.ndarray) else source()


def _storer(out: np.ndarray, dtype: DType) -> Callable[[np.ndarray], None]:
    if dtype.numpy is not None:
        return lambda values: np.copyto(out, values, casting="unsafe")
    return lambda values: np.copyto(out, quantise(values, dtype))


# the operations that weights and caches make expensive


def _mul_mat(node: Tensor, arrays: Arrays) -> Step | None:
    """BLAS on the copy of the weight, or piece by piece where there is none."""
    w, x = node.inputs
    weight = arrays.weight(w)
    if weight is None or len(w.shape) != 2 or node.dtype is not F32 or not x.is_contiguous:
        return None
    source, dense = arrays.source(x), weight.dense()
    if not isinstance(source, np.ndarray):
        return None
    rows = source.reshape(-1, w.shape[1])
    out = arrays.raw(node).reshape(-1, w.shape[0])
    if dense is None:
        return lambda: _mul_mat_in_pieces(weight, rows, out)
    if len(rows) == 1:
        return lambda: np.dot(dense, rows[0], out=out[0])
    return lambda: np.matmul(rows, dense.T, out=out)


def _mul_mat_in_pieces(weight: HostWeight, x: np.ndarray, out: np.ndarray) -> None:
    step = max(1, 8 * PIECE // max(x.shape[1], 1))
    for at in range(0, len(weight.raw), step):
        out[:, at : at + step] = x @ weight.values(slice(at, at + step)).T


@attrs.frozen(eq=False)
class _Experts:
    """A stack of matrices of which only those that are asked for are dequantised."""

    weight: HostWeight
    shape: tuple[int, ...]

    def __getitem__(self, expert: int) -> np.ndarray:
        values: np.ndarray = self.weight.values(slice(expert, expert + 1))[0]
        return values


def _mul_mat_id(node: Tensor, arrays: Arrays) -> Step | None:
    w, x, ids = node.inputs
    weight = arrays.weight(w)
    if weight is None or weight.dense() is not None:
        return None
    experts, source, chosen = _Experts(weight, w.shape), arrays.source(x), arrays.raw(ids)
    store = _storer(arrays.raw(node), node.dtype)
    return lambda: store(mul_mat_id(experts, _now(source), chosen))


def _get_rows(node: Tensor, arrays: Arrays) -> Step | None:
    """Only the rows that are asked for are dequantised."""
    a, ids = node.inputs
    if len(a.shape) != 2 or a.dtype is F32:
        return None
    raw, numbers = arrays.raw(a), arrays.raw(ids)
    store = _storer(arrays.raw(node), node.dtype)
    return lambda: store(dequantise(raw[numbers], a.dtype))


def _kv_attention(node: Tensor, arrays: Arrays) -> Step | None:
    if node.attrs.get("max_bias", 0.0) or len(node.inputs) > 8 or node.dtype is not F32:
        return None
    sources = [
        arrays.raw(t) if i in (3, 4) else arrays.source(t) for i, t in enumerate(node.inputs)
    ]
    run = partial(
        cached_attention,
        out=arrays.raw(node),
        dtype=node.inputs[3].dtype,
        scale=node.attrs["scale"],
        softcap=node.attrs.get("logit_softcap", 0.0),
    )
    return lambda: run(*map(_now, sources))


SPECIAL: dict[str, Callable[[Tensor, Arrays], Step | None]] = {
    "get_rows": _get_rows,
    "kv_attention": _kv_attention,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
}
