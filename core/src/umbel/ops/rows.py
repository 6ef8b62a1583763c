"""Gathering, scattering and multiplying rows.

Rows of a cache are read and written as they are stored: float32, float16, or q8_0 as bytes
(uint8, one row of blocks per cell).
"""

import math

import numpy as np

from umbel.gguf.types import F32, I32, Q8_0, DType, dequantise, quantise
from umbel.graph import Builder, Operation, RowsForm, Spec, Tensor
from umbel.ops.rules import Array, divides, fit, need


def _infer_get_rows(a: Tensor, ids: Tensor) -> Spec:
    n = fit("get_rows", "a (..., R, C), ids (...) i32", a, ids)
    batched = len(ids.shape) > 0 and ids.shape[:-1] == a.shape[:-2]
    expected = "a (R, C) with any ids, or a (*B, R, C) with ids (*B, n)"
    need(len(a.shape) == 2 or batched, "get_rows", expected, a, ids)
    return Spec((*ids.shape, n["C"]), F32)


def _infer_set_rows(dst: Tensor, src: Tensor, ids: Tensor) -> Spec:
    fit("set_rows", "dst (R, C) cache, src (n, C), ids (n) i32", dst, src, ids)
    return Spec(dst.shape, dst.dtype)


def _infer_mul_mat(w: Tensor, x: Tensor) -> Spec:
    n = fit("mul_mat", "w (..., out, in), x (..., n, in) float", w, x)
    leading = zip(w.shape[-3::-1], x.shape[-3::-1], strict=False)
    fits = len(w.shape) <= len(x.shape) and all(divides(n, m) for n, m in leading)
    need(fits, "mul_mat", "leading axes of x that are multiples of those of w", w, x)
    return Spec((*x.shape[:-1], n["out"]), x.dtype)


def _infer_mul_mat_id(w: Tensor, x: Tensor, ids: Tensor) -> Spec:
    rule = "w (experts, out, in), x (n, own, in) float, ids (n, used) i32"
    n = fit("mul_mat_id", rule, w, x, ids)
    need(n["own"] in (1, n["used"]), "mul_mat_id", f"{rule}, own 1 or used", w, x, ids)
    return Spec((n["n"], n["used"], n["out"]), x.dtype)


def _infer_top_k(x: Tensor, *, k: int) -> Spec:
    n = fit("top_k", "x (..., n) float", x)
    need(1 <= k <= n["n"], "top_k", "1 <= k <= n", x, k=k)
    return Spec((*x.shape[:-1], k), I32)


def _infer_sum_rows(x: Tensor) -> Spec:
    fit("sum_rows", "x (..., n) float", x)
    return Spec((*x.shape[:-1], 1), x.dtype)


def get_rows(a: Array, ids: Array) -> Array:
    """Rows of a (R, C), one for each id of any shape; or, stacked, of each matrix of a
    (*B, R, C) those that its own row of ids (*B, n) names: (*B, n, C)."""
    rows = a.take(ids, axis=0) if a.ndim == 2 else np.take_along_axis(a, ids[..., None], -2)
    if rows.dtype == np.uint8:
        return dequantise(rows, Q8_0)
    return rows.astype(np.float32, copy=False)


def set_rows(dst: Array, src: Array, ids: Array) -> Array:
    """Writes src (n, C) into the rows `ids` (n) of a state (R, C), which is the result."""
    dst[ids] = quantise(src, Q8_0) if dst.dtype == np.uint8 else src
    return dst


def mul_mat(w: Array, x: Array) -> Array:
    """x w^T: w (..., out, in), x (..., n, in) to (..., n, out). w may have fewer leading axes,
    or shorter ones, of which each entry serves as many neighbours in x."""
    turned = w.swapaxes(-1, -2)
    if w.ndim == 2:
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return np.matmul(flat, turned).reshape(*x.shape[:-1], w.shape[0])
    for axis, (n, m) in enumerate(zip(w.shape[:-2], x.shape[-w.ndim :], strict=False)):
        if n != m:  # batch i of x meets batch i // ratio of w
            turned = turned.repeat(m // n, axis)
    return np.matmul(x, turned)


def mul_mat_id(w: Array, x: Array, ids: Array) -> Array:
    """Each row times the matrices of its experts: w (experts, out, in), x (n, 1 or used, in),
    ids (n, used) to (n, used, out)."""
    x = np.broadcast_to(x, (*ids.shape, x.shape[2]))
    out = np.empty((*ids.shape, w.shape[1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        out[chosen] = x[chosen] @ w[expert].T
    return out


def top_k(x: Array, *, k: int) -> Array:
    """Where the k largest of each row are, the largest first; of equal ones the first."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def sum_rows(x: Array) -> Array:
    """The sum over the last axis, which stays as one of 1: (..., n) to (..., 1)."""
    return np.add.reduce(x, axis=-1, keepdims=True)


def _mul_mat_id_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """All experts on all tokens, then the rows of those that were chosen."""
    w, x, ids = node.inputs
    experts, out, _ = w.shape
    n, used = ids.shape
    rows = n * x.shape[1]
    every = build.mul_mat(build.reshape(w, shape=(experts * out, w.shape[2])), x)
    every = build.reshape(every, shape=(rows, experts, out))
    each = build.reshape(ids, shape=(rows, used // x.shape[1]))
    return build.reshape(build.get_rows(every, each), shape=node.shape)


def _rows_form(build: Builder, node: Tensor, dtype: DType) -> RowsForm:
    """Nothing is left to compute: the caller writes the rows. The state keeps its old ones."""
    state, rows, ids = node.inputs
    return RowsForm(state, ((state, rows, ids),))


OPS = (
    Operation("get_rows", _infer_get_rows, get_rows),
    Operation(
        "set_rows", _infer_set_rows, set_rows, rows_form=_rows_form, writes=True, mutates=(0,)
    ),
    Operation("mul_mat", _infer_mul_mat, mul_mat),
    Operation("mul_mat_id", _infer_mul_mat_id, mul_mat_id, _mul_mat_id_parts),
    Operation("top_k", _infer_top_k, top_k),
    Operation("sum_rows", _infer_sum_rows, sum_rows),
)
