"""How the host backend runs a node: its reference, or a faster form of it where that pays.

Each function gets a node and how to find arrays, and returns a step: a call without arguments
that computes into memory whose address is already known. Of a cache, attention reads only what
is seen: sequences look at their own cells, which mostly lie side by side; causal masks and
sliding windows hide much of what is left, so queries go through in blocks.
"""

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import numpy as np

from umbel.gguf.types import BF16, F32, DType, dequantise, quantise
from umbel.graph import MASKED, Tensor
from umbel.hookspecs import Slot
from umbel.host.memory import PIECE, HostWeight
from umbel.ops.rows import mul_mat_id, set_rows

Step = Callable[[], object]
Source = Callable[[], np.ndarray]
BLOCK = 64  # queries of attention at a time
_LOWEST = np.float32(-3e38)


@attrs.frozen(eq=False)
class Arrays:
    """The arrays of one split's tensors, views on their slots."""

    slots: Mapping[Tensor, Slot]

    def weight(self, t: Tensor) -> HostWeight | None:
        """The weight or constant itself; None for a window on one."""
        buffer = self.slots[t.storage].buffer
        return buffer if isinstance(buffer, HostWeight) and t.base is None else None

    def raw(self, t: Tensor) -> np.ndarray:
        """The tensor in its own dtype, bf16 as bits; rows of bytes where there are blocks."""
        slot = self.slots[t.storage]
        shape, strides = t.shape, t.strides
        dtype = np.dtype("<u2") if t.dtype is BF16 else t.dtype.numpy
        if dtype is None:
            shape = (*shape[:-1], t.dtype.row_bytes(shape[-1]))
            strides, dtype = (*strides[:-1], 1), np.dtype(np.uint8)
        start = slot.offset + t.offset
        array: np.ndarray = np.ndarray(shape, dtype, slot.buffer.map("rw"), start, strides)
        return array

    def source(self, t: Tensor) -> Source:
        """As a reference reads it at each step: float32, or integers."""
        weight = self.weight(t)
        if weight is not None:
            dense = weight.dense(always=len(t.shape) < 2)
            return partial(weight.values, slice(None)) if dense is None else _always(dense)
        raw = self.raw(t)
        if t.dtype is F32 or raw.dtype.kind == "i":
            return _always(raw)
        return lambda: dequantise(np.ascontiguousarray(raw), t.dtype)

    def sources(self, node: Tensor) -> list[Source]:
        """All inputs of a node; those that it changes as they are stored."""
        changed = node.op.mutates if node.op else ()
        return [
            _always(self.raw(t)) if i in changed else self.source(t)
            for i, t in enumerate(node.inputs)
        ]

    def storer(self, node: Tensor) -> Callable[[np.ndarray], None]:
        """Puts the result into the memory of the node."""
        out = self.raw(node)
        if node.dtype.numpy is not None:
            return lambda values: np.copyto(out, values, casting="unsafe")
        return lambda values: np.copyto(out, quantise(values, node.dtype).view(out.dtype))


def _always(array: np.ndarray) -> Source:
    return lambda: array


def compile_node(node: Tensor, arrays: Arrays) -> Step:
    """The step that computes `node`."""
    assert node.op is not None
    special = SPECIAL.get(node.op.name, _by_reference)
    return special(node, arrays) or _by_reference(node, arrays)


def _by_reference(node: Tensor, arrays: Arrays) -> Step:
    assert node.op is not None
    reference = partial(node.op.reference, **node.attrs)
    sources = arrays.sources(node)
    if node.op.writes:
        return lambda: reference(*[source() for source in sources])
    store = arrays.storer(node)
    return lambda: store(reference(*[source() for source in sources]))


# the operations that weights and caches make expensive


def _mul_mat(node: Tensor, arrays: Arrays) -> Step | None:
    """BLAS on the copy of the weight, or piece by piece where there is none."""
    w, x = node.inputs
    weight = arrays.weight(w)
    plain = node.dtype is x.dtype is F32 and x.is_contiguous
    if weight is None or len(w.shape) != 2 or not plain:
        return None
    dense = weight.dense()
    rows = arrays.raw(x).reshape(-1, w.shape[1])
    out = arrays.raw(node).reshape(-1, w.shape[0])
    if dense is None:
        return lambda: _mul_mat_in_pieces(weight, rows, out)
    if len(rows) == 1:
        return lambda: np.dot(dense, rows[0], out=out[0])
    return lambda: np.matmul(rows, dense.T, out=out)


def _mul_mat_in_pieces(weight: HostWeight, x: np.ndarray, out: np.ndarray) -> None:
    step = max(1, 4 * PIECE // max(x.shape[1], 1))
    for at in range(0, len(weight.raw), step):
        out[:, at : at + step] = x @ weight.values(slice(at, at + step)).T


def _mul_mat_id(node: Tensor, arrays: Arrays) -> Step | None:
    """Only the experts that are asked for are dequantised."""
    w, x, ids = node.inputs
    weight = arrays.weight(w)
    if weight is None or weight.dense() is not None:
        return None
    source, chosen, store = arrays.source(x), arrays.raw(ids), arrays.storer(node)
    return lambda: store(mul_mat_id(weight, source(), chosen))


def _get_rows(node: Tensor, arrays: Arrays) -> Step | None:
    """Only the rows that are asked for are dequantised."""
    a, ids = node.inputs
    if len(a.shape) != 2 or a.dtype is F32:
        return None
    raw, numbers, store = arrays.raw(a), arrays.raw(ids), arrays.storer(node)
    return lambda: store(dequantise(raw[numbers], a.dtype))


def _kv_attention(node: Tensor, arrays: Arrays) -> Step | None:
    if node.attrs.get("max_bias", 0.0) or len(node.inputs) > 8 or node.dtype is not F32:
        return None
    sources = arrays.sources(node)
    run = partial(_cached_attention, node, arrays.raw(node))
    return lambda: run(*[source() for source in sources])


def _cached_attention(
    node: Tensor,
    out: np.ndarray,  # (S*T, H*hv)
    q: np.ndarray,  # (S, T, H, hd)
    k: np.ndarray,  # (S, T, Hkv, hd)
    v: np.ndarray,  # (S, T, Hkv, hv)
    k_cache: np.ndarray,  # (cells, Hkv*hd), as it is stored
    v_cache: np.ndarray,
    cells: np.ndarray,  # (S*T,)
    table: np.ndarray,  # (S, L)
    mask: np.ndarray,  # (S, 1, T, L)
) -> None:
    """Writes k and v into the caches at `cells`, then attends over the rows `table`."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        set_rows(cache, new.reshape(len(cells), -1), cells)
    dtype, softcap = node.inputs[3].dtype, node.attrs.get("logit_softcap", 0.0)
    scaled = q * np.float32(node.attrs["scale"])
    for s, result in enumerate(out.reshape(*q.shape[:2], -1)):
        span = _span(mask[s, 0])
        keys = _rows(k_cache, table[s, span], dtype).reshape(-1, *k.shape[2:])
        values = _rows(v_cache, table[s, span], dtype).reshape(-1, *v.shape[2:])
        for at in range(0, q.shape[1], BLOCK):
            part = slice(at, at + BLOCK)
            bias = mask[s, 0, part, span]
            seen = _span(bias)
            result[part] = _attend(
                scaled[s, part], keys[seen], values[seen], bias[:, seen], softcap
            )


def _span(bias: np.ndarray) -> slice:
    """The columns from the first to the last that some row sees."""
    seen = np.flatnonzero((bias > MASKED / 2).any(axis=0))
    return slice(seen[0], seen[-1] + 1) if len(seen) else slice(0, 0)


def _rows(cache: np.ndarray, cells: np.ndarray, dtype: DType) -> np.ndarray:
    """Rows of the cache as float32; where they lie side by side, without a copy."""
    n = len(cells)
    together = n and cells[-1] - cells[0] == n - 1 and (np.diff(cells) == 1).all()
    rows = cache[cells[0] : cells[0] + n] if together else cache[cells]
    return dequantise(rows, dtype)


def _attend(
    q: np.ndarray,  # (T, H, hd), scaled
    k: np.ndarray,  # (n, Hkv, hd)
    v: np.ndarray,  # (n, Hkv, hv)
    bias: np.ndarray,  # (T, n)
    softcap: float,
) -> np.ndarray:  # (T, H*hv)
    (t, h, hd), (n, heads) = q.shape, k.shape[:2]
    rows = q.swapaxes(0, 1).reshape(heads, h // heads * t, hd)  # heads of a group together
    scores = np.matmul(rows, k.transpose(1, 2, 0))
    if softcap:
        np.tanh(scores / softcap, out=scores)
        scores *= np.float32(softcap)
    by_head = scores.reshape(h, t, n)
    by_head += np.where(bias > MASKED / 2, bias, -np.inf)
    scores -= scores.max(axis=-1, keepdims=True, initial=_LOWEST)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    result = np.matmul(scores, v.swapaxes(0, 1))
    result /= np.where(total > 0, total, 1)  # where all is hidden there is nothing
    joined: np.ndarray = result.reshape(h, t, -1).swapaxes(0, 1).reshape(t, -1)
    return joined


SPECIAL: dict[str, Callable[[Tensor, Arrays], Step | None]] = {
    "get_rows": _get_rows,
    "kv_attention": _kv_attention,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
}
