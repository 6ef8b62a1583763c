"""Gathering, scattering and multiplying rows.

Rows of a cache are read and written as they are stored: float32, float16, or q8_0 as bytes
(uint8, one row of blocks per cell).
"""

from __future__ import annotations

import math

import numpy as np

from umbel.gguf.quants import dequantise, quantise
from umbel.gguf.types import F32, I32, Q8_0, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.rules import Array, is_index, is_number, need, need_float, result_dtype


def _infer_get_rows(a: Tensor, ids: Tensor) -> Spec:
    need(is_number(a) and is_index(ids), "get_rows", "numbers, and i32 ids", a, ids)
    if len(a.shape) == 2:
        return Spec((*ids.shape, a.shape[1]), F32)
    batched = len(a.shape) > 2 and ids.shape[:-1] == a.shape[:-2]
    expected = "a (R, C) with any ids, or a (*B, R, C) with ids (*B, n)"
    need(batched and len(ids.shape) > 0, "get_rows", expected, a, ids)
    return Spec((*ids.shape, a.shape[-1]), F32)


def _infer_set_rows(dst: Tensor, src: Tensor, ids: Tensor) -> Spec:
    kinds = dst.dtype.name in ("f32", "f16", "q8_0") and is_number(src) and is_index(ids)
    shapes = (len(dst.shape), ids.shape) == (2, src.shape[:1])
    fits = kinds and shapes and src.shape[1:] == dst.shape[1:]
    expected = "dst (R, C) f32, f16 or q8_0, src (n, C), ids (n,) i32"
    need(fits, "set_rows", expected, dst, src, ids)
    return Spec(dst.shape, dst.dtype)


def _infer_mul_mat(w: Tensor, x: Tensor) -> Spec:
    fits = 2 <= len(w.shape) <= len(x.shape) and is_number(w)
    fits = fits and w.shape[-1] == x.shape[-1]
    need_float("mul_mat", x)
    pairs = zip(w.shape[-3::-1], x.shape[-3::-1], strict=False)
    fits = fits and all(m % n == 0 if n else m == 0 for n, m in pairs)
    expected = "w (..., out, in), x (..., n, in), leading axes of x multiples of those of w"
    need(fits, "mul_mat", expected, w, x)
    return Spec((*x.shape[:-1], w.shape[-2]), result_dtype(x))


def _infer_mul_mat_id(w: Tensor, x: Tensor, ids: Tensor) -> Spec:
    ranks = (len(w.shape), len(x.shape), len(ids.shape)) == (3, 3, 2)
    fits = ranks and is_number(w) and is_index(ids) and w.shape[2] == x.shape[2]
    fits = fits and x.shape[0] == ids.shape[0] and x.shape[1] in (1, ids.shape[1])
    expected = "w (experts, out, in), x (n, used or 1, in), ids (n, used) i32"
    need(fits, "mul_mat_id", expected, w, x, ids)
    return Spec((*ids.shape, w.shape[1]), result_dtype(x))


def _infer_top_k(x: Tensor, *, k: int) -> Spec:
    need_float("top_k", x)
    fits = len(x.shape) > 0 and 1 <= k <= x.shape[-1]
    need(fits, "top_k", "1 <= k <= length of the last axis", x, attribute=f"k={k}")
    return Spec((*x.shape[:-1], k), I32)


def _infer_sum_rows(x: Tensor) -> Spec:
    need_float("sum_rows", x)
    need(len(x.shape) > 0, "sum_rows", "an axis to sum over", x)
    return Spec((*x.shape[:-1], 1), x.dtype)


def get_rows(a: Array, ids: Array) -> Array:
    if a.ndim == 2:
        return load(a.take(ids, axis=0))
    return load(np.take_along_axis(a, ids[..., None], axis=-2))


def set_rows(dst: Array, src: Array, ids: Array) -> Array:
    dst[ids] = quantise(src, Q8_0) if dst.dtype == np.uint8 else src
    return dst


def load(rows: Array) -> Array:
    """Stored rows as float32."""
    if rows.dtype == np.uint8:
        return dequantise(rows, Q8_0)
    return rows.astype(np.float32, copy=False)


def mul_mat(w: Array, x: Array) -> Array:
    turned = w.swapaxes(-1, -2)
    if w.ndim == 2:
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return np.matmul(flat, turned).reshape(*x.shape[:-1], w.shape[0])
    lead = (1,) * (x.ndim - w.ndim) + w.shape[:-2]
    ratios = [m // n if n else 1 for n, m in zip(lead, x.shape, strict=False)]
    if all(r == 1 for r in ratios):
        return np.matmul(x, turned)
    # the rows of the last ratio go into one product: w is read once for all of them
    apart = [d for pair in zip(lead, ratios, strict=True) for d in pair][:-1]
    grouped = x.reshape(*apart, ratios[-1] * x.shape[-2], x.shape[-1])
    once = [d for n in lead for d in (n, 1)][:-1]
    product = np.matmul(grouped, turned.reshape(*once, *turned.shape[-2:]))
    return product.reshape(*x.shape[:-1], w.shape[-2])


def mul_mat_id(w: Array, x: Array, ids: Array) -> Array:
    x = np.broadcast_to(x, (*ids.shape, x.shape[2]))
    out = np.empty((*ids.shape, w.shape[1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        out[chosen] = x[chosen] @ w[expert].T
    return out


def top_k(x: Array, *, k: int) -> Array:
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def sum_rows(x: Array) -> Array:
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


OPS = (
    Operation("get_rows", _infer_get_rows, get_rows),
    Operation("set_rows", _infer_set_rows, set_rows, writes=True),
    Operation("mul_mat", _infer_mul_mat, mul_mat),
    Operation("mul_mat_id", _infer_mul_mat_id, mul_mat_id, _mul_mat_id_parts),
    Operation("top_k", _infer_top_k, top_k),
    Operation("sum_rows", _infer_sum_rows, sum_rows),
)
