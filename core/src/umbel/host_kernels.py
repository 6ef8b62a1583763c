"""How the host backend runs a node: its reference, or a faster form of it where that pays.

Each function gets a node and how to find arrays, and returns a step: a call without arguments
that computes into memory whose address is already known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from umbel.gguf.quants import dequantise, quantise
from umbel.gguf.types import DType
from umbel.graph import MASKED, Tensor
from umbel.hookspecs import Slot
from umbel.host_memory import HostWeight

Step = Callable[[], None]
PIECE = 1 << 20  # values of a weight that are dequantised at a time when no copy is kept


class Arrays:
    """The arrays of one split's tensors, views on their slots."""

    def __init__(self, slots: Mapping[Tensor, Slot]) -> None:
        self.slots = slots

    def weight(self, t: Tensor) -> HostWeight | None:
        handle = self.slots[t.storage].buffer.handle
        return handle if isinstance(handle, HostWeight) else None

    def raw(self, t: Tensor) -> np.ndarray:
        """The tensor in its own dtype; rows of bytes where NumPy does not know it."""
        weight = self.weight(t)
        if weight is not None:
            if t.base is None:
                return weight.raw
            memory, start = weight.raw, 0
        else:
            slot = self.slots[t.storage]
            memory, start = slot.buffer.map("rw"), slot.offset
        shape, strides, dtype = t.shape, t.strides, t.dtype.numpy
        if dtype is None:
            shape = (*shape[:-1], t.dtype.row_bytes(shape[-1]))
            strides, dtype = (*strides[:-1], 1), np.dtype(np.uint8)
        memory = memory.reshape(-1).view(np.uint8)
        return np.ndarray(shape, dtype, memory, start + t.offset, strides)

    def loader(self, t: Tensor) -> np.ndarray | Callable[[], np.ndarray]:
        """float32 (or integers): the array itself, or a call that converts it at each step."""
        weight = self.weight(t)
        if weight is not None and t.base is None and t.dtype.name[0] != "i":
            dense = weight.dense(always=True)
            assert dense is not None
            return dense
        raw = self.raw(t)
        if raw.dtype == np.float32 or raw.dtype.kind == "i":
            return raw
        return lambda: dequantise(np.ascontiguousarray(raw), t.dtype)


def compile_node(node: Tensor, arrays: Arrays) -> Step:
    """The step that computes `node`."""
    assert node.op is not None
    special = SPECIAL.get(node.op.name)
    step = special(node, arrays) if special else None
    return step or _by_reference(node, arrays)


def _by_reference(node: Tensor, arrays: Arrays) -> Step:
    assert node.op is not None
    reference, attributes = node.op.reference, dict(node.attrs)
    sources = [arrays.loader(t) for t in node.inputs]
    if node.op.writes:
        return lambda: _discard(reference(*map(_now, sources), **attributes))
    store = _storer(arrays.raw(node), node.dtype)
    if all(isinstance(s, np.ndarray) for s in sources):
        return lambda: store(reference(*sources, **attributes))
    return lambda: store(reference(*map(_now, sources), **attributes))


def _now(source: np.ndarray | Callable[[], np.ndarray]) -> np.ndarray:
    return source if isinstance(source, np.ndarray) else source()


def _discard(result: np.ndarray) -> None:
    """What an operation on state returns is the state itself."""


def _storer(out: np.ndarray, dtype: DType) -> Callable[[np.ndarray], None]:
    if dtype.numpy is not None:
        return lambda values: np.copyto(out, values, casting="unsafe")
    return lambda values: np.copyto(out, quantise(values, dtype))


# the operations that weights and caches make expensive


def _mul_mat(node: Tensor, arrays: Arrays) -> Step | None:
    w, x = node.inputs
    weight = arrays.weight(w)
    if weight is None or w.base is not None or len(w.shape) != 2 or len(x.shape) != 2:
        return None
    source, out, dense = arrays.loader(x), arrays.raw(node), weight.dense()
    if not isinstance(source, np.ndarray) or out.dtype != np.float32:
        return None
    if dense is None:
        return lambda: _mul_mat_in_pieces(weight, source, out)
    if x.shape[0] == 1:
        return lambda: _discard(np.dot(dense, source[0], out=out[0]))
    transposed = dense.T
    return lambda: _discard(np.matmul(source, transposed, out=out))


def _mul_mat_in_pieces(weight: HostWeight, x: np.ndarray, out: np.ndarray) -> None:
    step = max(1, PIECE // max(x.shape[1], 1))
    for at in range(0, len(weight.raw), step):
        piece = dequantise(weight.raw[at : at + step], weight.dtype)
        out[:, at : at + step] = x @ piece.T


def _mul_mat_id(node: Tensor, arrays: Arrays) -> Step | None:
    w, x, ids = node.inputs
    weight = arrays.weight(w)
    if weight is None or w.base is not None:
        return None
    source, chosen, out = arrays.loader(x), arrays.raw(ids), arrays.raw(node)
    dense = weight.dense()
    if not isinstance(source, np.ndarray) or out.dtype != np.float32:
        return None

    def run() -> None:
        for expert in np.unique(chosen):
            token, slot = np.nonzero(chosen == expert)
            rows = source[token, slot if source.shape[1] > 1 else 0]
            values = dense[expert] if dense is not None else None
            if values is None:
                values = dequantise(weight.raw[expert], weight.dtype)
            out[token, slot] = rows @ values.T

    return run


def _get_rows(node: Tensor, arrays: Arrays) -> Step | None:
    a, ids = node.inputs
    if len(a.shape) != 2:
        return None
    weight, numbers, out = arrays.weight(a), arrays.raw(ids), arrays.raw(node)
    if out.dtype != np.float32:
        return None
    dtype, raw = (a.dtype, arrays.raw(a)) if weight is None else (weight.dtype, weight.raw)
    if raw.dtype == np.float32:
        return lambda: _discard(np.take(raw, numbers, axis=0, out=out, mode="clip"))
    return lambda: np.copyto(out, dequantise(raw[numbers], dtype))


def _set_rows(node: Tensor, arrays: Arrays) -> Step | None:
    state, rows, ids = node.inputs
    raw, source, numbers = arrays.raw(state), arrays.loader(rows), arrays.raw(ids)
    return lambda: _scatter(raw, numbers, _now(source), state.dtype)


def _scatter(raw: np.ndarray, numbers: np.ndarray, rows: np.ndarray, dtype: DType) -> None:
    if dtype.numpy is None:
        rows = quantise(np.ascontiguousarray(rows), dtype)
    raw[numbers] = rows


def _kv_attention(node: Tensor, arrays: Arrays) -> Step | None:
    """Attends to each sequence's own cells, which mostly lie side by side."""
    q, k, v, k_cache, v_cache, cells, table, mask = node.inputs[:8]
    if node.attrs.get("max_bias", 0.0) or len(node.inputs) > 8:
        return None
    plain = [arrays.loader(t) for t in (q, k, v, mask)]
    out = arrays.raw(node)
    if out.dtype != np.float32 or not all(isinstance(a, np.ndarray) for a in plain):
        return None
    queries, keys, values, masks = (a for a in plain if isinstance(a, np.ndarray))
    numbers, tables = arrays.raw(cells), arrays.raw(table)
    caches = (arrays.raw(k_cache), k_cache.dtype), (arrays.raw(v_cache), v_cache.dtype)
    scale, softcap = node.attrs["scale"], node.attrs.get("logit_softcap", 0.0)
    n = q.shape[1]

    def run() -> None:
        for (raw, dtype), new in zip(caches, (keys, values), strict=True):
            _scatter(raw, numbers, new.reshape(len(numbers), -1), dtype)
        for s, row in enumerate(tables):
            used = len(row) - int((row != 0).argmax()) if row.any() else n  # cell 0 is padding
            mine = row[len(row) - used :]
            ks, vs = (_rows(raw, mine, dtype) for raw, dtype in caches)
            seen = masks[s, 0, :, len(row) - used :]
            result = _attend(queries[s], ks, vs, seen, keys.shape[2], scale, softcap)
            out[s * n : (s + 1) * n] = result

    return run


def _rows(raw: np.ndarray, numbers: np.ndarray, dtype: DType) -> np.ndarray:
    first, n = int(numbers[0]), len(numbers)
    together = int(numbers[-1]) - first == n - 1 and bool((np.diff(numbers) == 1).all())
    rows = raw[first : first + n] if together else raw[numbers]
    return rows if rows.dtype == np.float32 else dequantise(rows, dtype)


def _attend(
    q: np.ndarray,  # (T, H, hd)
    k: np.ndarray,  # (n, Hkv * hd)
    v: np.ndarray,  # (n, Hkv * hv)
    mask: np.ndarray,  # (T, n)
    kv_heads: int,
    scale: float,
    softcap: float,
) -> np.ndarray:
    t, h, hd = q.shape
    group = h // kv_heads
    keys = k.reshape(len(k), kv_heads, hd).transpose(1, 2, 0)  # (Hkv, hd, n)
    values = v.reshape(len(v), kv_heads, -1).transpose(1, 0, 2)  # (Hkv, n, hv)
    rows = q.transpose(1, 0, 2).reshape(kv_heads, group * t, hd)  # heads of a group together
    scores = np.matmul(rows * np.float32(scale), keys)
    if softcap:
        scores = np.tanh(scores / softcap) * np.float32(softcap)
    scores = scores.reshape(kv_heads, group, t, len(k))
    hidden = mask <= MASKED / 2
    if t > 1 or hidden.any():
        scores = np.where(hidden, np.float32(-np.inf), scores + mask)
    top = scores.max(axis=-1, keepdims=True)
    np.subtract(scores, np.where(np.isfinite(top), top, 0.0), out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= np.where(total > 0, total, 1.0)
    result = np.matmul(scores.reshape(kv_heads, group * t, len(k)), values)
    return result.reshape(h, t, -1).transpose(1, 0, 2).reshape(t, -1)


SPECIAL: dict[str, Callable[[Tensor, Arrays], Step | None]] = {
    "get_rows": _get_rows,
    "kv_attention": _kv_attention,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
    "set_rows": _set_rows,
}
