"""Soft maximum and attention, with ALiBi (arXiv 2108.12409), soft capping and sinks as ggml's.

S sequences, T tokens of each in this step, L cells that each looks at, H heads of size hd (hv
for values), Hkv of them in the cache. A mask value of `MASKED` (anything up to half of it)
hides a position: its weight is exactly zero, and where all are hidden the result is zero.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from umbel.gguf.types import F16, DType
from umbel.graph import MASKED, Builder, Operation, RowsForm, Spec, Tensor
from umbel.ops.rows import get_rows, mul_mat, set_rows
from umbel.ops.rules import Array, broadcasts, is_index, is_number, need, need_float
from umbel.ops.shape import contiguous_copy

_LOWEST = np.float32(-3e38)
_FLASH_EXPECTED = (
    "q (S, H, T, hd), k (S, Hkv, L, hd), v (S, Hkv, L, hv), mask (S, 1, T, L) (max_bias needs "
    "it), sinks (H,), H a multiple of Hkv"
)
_KV_EXPECTED = (
    "q (S, T, H, hd), k (S, T, Hkv, hd), v (S, T, Hkv, hv), k_cache (cells, Hkv*hd), "
    "v_cache (cells, Hkv*hv), cells (S*T,) i32, table (S, L >= T) i32, mask (S, 1, T, L), "
    "sinks (H,), H a multiple of Hkv"
)


@attrs.frozen
class Attention:
    """The attributes of flash_attn_ext and kv_attention."""

    scale: float
    max_bias: float = 0.0  # of ALiBi; 0 = none
    logit_softcap: float = 0.0  # 0 = none


def _infer_soft_max(
    x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, max_bias: float = 0.0
) -> Spec:
    need_float("soft_max", x)
    need(len(x.shape) > 0, "soft_max", "an axis to normalise", x)
    if mask is not None:
        fits = broadcasts(mask.shape, x.shape) and is_number(mask)
        need(fits, "soft_max", "a mask that broadcasts to x", x, mask)
    alibi = max_bias == 0 or (len(x.shape) >= 3 and mask is not None)
    need(alibi, "soft_max", "x (..., heads, n, L) and a mask for max_bias", x)
    return Spec(x.shape, x.dtype)


def _infer_flash_attn_ext(
    q: Tensor, k: Tensor, v: Tensor, *others: Tensor, **attributes: Any
) -> Spec:
    how, inputs = Attention(**attributes), (q, k, v, *others)
    ranks = len(q.shape) == len(k.shape) == len(v.shape) == 4 and len(others) <= 2
    need(ranks, "flash_attn_ext", _FLASH_EXPECTED, *inputs)
    (seqs, heads, tokens, _), (kv_heads, cells) = q.shape, k.shape[1:3]
    need_float("flash_attn_ext", q)
    fits = k.shape == (seqs, kv_heads, cells, q.shape[3])
    fits = fits and v.shape[:3] == k.shape[:3] and kv_heads > 0 and heads % kv_heads == 0
    fits = fits and all(broadcasts(m.shape, (seqs, 1, tokens, cells)) for m in others[:1])
    fits = fits and all(s.shape == (heads,) for s in others[1:])
    fits = fits and (how.max_bias == 0 or bool(others)) and all(map(is_number, inputs))
    need(fits, "flash_attn_ext", _FLASH_EXPECTED, *inputs)
    return Spec((seqs, tokens, heads, v.shape[3]), q.dtype)


def _infer_kv_attention(*inputs: Tensor, **attributes: Any) -> Spec:
    name, expected, _ = "kv_attention", _KV_EXPECTED, Attention(**attributes)
    ranks = tuple(len(t.shape) for t in inputs[:8]) == (4, 4, 4, 2, 2, 1, 2, 4)
    need(ranks and len(inputs) <= 9, name, expected, *inputs)
    q, k, v, k_cache, v_cache, cells, table, mask, *sinks = inputs
    (seqs, tokens, heads, size), (kv_heads, v_size) = q.shape, v.shape[2:]
    n, length = k_cache.shape[0], table.shape[1]
    shapes = (
        (seqs, tokens, kv_heads, size),
        (seqs, tokens, kv_heads, v_size),
        (n, kv_heads * size),
        (n, kv_heads * v_size),
        (seqs * tokens,),
        (seqs, length),
        (seqs, 1, tokens, length),
        *((heads,) for _ in sinks),
    )
    fits = tuple(t.shape for t in inputs[1:]) == shapes and length >= tokens
    fits = fits and kv_heads > 0 and heads % kv_heads == 0
    fits = fits and is_index(cells) and is_index(table)
    fits = fits and all(t.dtype.name in ("f32", "f16", "q8_0") for t in (k_cache, v_cache))
    need(fits and all(map(is_number, (q, k, v, mask, *sinks))), name, expected, *inputs)
    return Spec((seqs * tokens, heads * v_size), q.dtype)


@lru_cache(maxsize=16)
def _slopes(heads: int, max_bias: float) -> Array:
    """What each head multiplies the mask by; past a power of two, the odd steps between."""
    whole = 1 << (max(heads, 1).bit_length() - 1)
    first = [2 ** (-max_bias * (h + 1) / whole) for h in range(whole)]
    between = [2 ** (-max_bias * (h + 0.5) / whole) for h in range(heads - whole)]
    return np.array(first + between, np.float32)[:heads, None, None]


def _weights(
    scores: Array, mask: Array | None, max_bias: float, sinks: Array | None = None
) -> Array:
    """Scores (which are overwritten) to weights; a sink takes a share and gives nothing."""
    if mask is not None:
        scores += mask * _slopes(scores.shape[-3], max_bias) if max_bias else mask
        np.copyto(scores, -np.inf, where=mask <= MASKED / 2)
    top = scores.max(axis=-1, keepdims=True, initial=_LOWEST)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    scores -= top
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    scores /= np.where(total == 0, 1, total)
    return scores


def soft_max(
    x: Array, mask: Array | None = None, *, scale: float = 1.0, max_bias: float = 0.0
) -> Array:
    return _weights(x * np.float32(scale), mask, max_bias)


def flash_attn_ext(q: Array, k: Array, v: Array, *others: Array, **attributes: Any) -> Array:
    how = Attention(**attributes)
    mask, sinks = (*others, None, None)[:2]
    scores = mul_mat(k, q * np.float32(how.scale))  # (S, H, T, L)
    if how.logit_softcap:
        cap = np.float32(how.logit_softcap)
        scores = np.tanh(scores / cap) * cap
    weights = _weights(scores, mask, how.max_bias, sinks)
    out = mul_mat(v.swapaxes(-1, -2), weights)  # (S, H, T, hv)
    return np.ascontiguousarray(out.swapaxes(1, 2))


def kv_attention(*inputs: Array, **attributes: Any) -> Array:
    """Writes k and v into the caches at `cells`, then attends over the rows `table`."""
    q, k, v, k_cache, v_cache, cells, table, *others = inputs
    heads = [q.swapaxes(1, 2)]
    for new, cache in ((k, k_cache), (v, v_cache)):
        set_rows(cache, new.reshape(len(cells), new.shape[2] * new.shape[3]), cells)
        rows = get_rows(cache, table).reshape(*table.shape, *new.shape[2:])
        heads.append(rows.swapaxes(1, 2))
    out = flash_attn_ext(*heads, *others, **attributes)
    return out.reshape(len(cells), out.shape[2] * out.shape[3])


def _flash_attn_ext_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    how, (q, k, v, *others) = Attention(**node.attrs), node.inputs
    # scaling q keeps the products within f16 where those of q and k are not
    scores = build.mul_mat(k, build.scale(q, s=how.scale / (how.logit_softcap or 1.0)))
    if how.logit_softcap:
        scores = build.scale(build.tanh(scores), s=how.logit_softcap)
    elif dtype == F16:
        scores = build.clamp(scores, min=MASKED, max=-MASKED)
    if len(others) == 2:
        weights = _with_sinks(build, scores, others[0], others[1], how.max_bias)
    else:
        weights = build.soft_max(scores, *others, max_bias=how.max_bias)
    out = build.mul_mat(build.transpose(v), weights)  # (S, H, T, hv)
    return contiguous_copy(build, build.permute(out, axes=(0, 2, 1, 3)))


def _with_sinks(
    build: Builder, scores: Tensor, mask: Tensor, sinks: Tensor, max_bias: float
) -> Tensor:
    """A sink is one more column of scores, always seen, whose weight is dropped."""
    seqs, heads, tokens, cells = scores.shape
    column = build.reshape(sinks, shape=(1, heads, 1, 1))
    column = build.repeat(column, shape=(seqs, heads, tokens, 1))
    seen = build.const(np.zeros((*mask.shape[:-1], 1), np.float32))
    scores, mask = build.concat(scores, column, axis=3), build.concat(mask, seen, axis=3)
    weights = build.soft_max(scores, mask, max_bias=max_bias)
    return build.view(weights, axis=3, start=0, stop=cells)


def _rows(build: Builder, x: Tensor) -> Tensor:
    """(S, T, heads, size) as rows of a cache: (S*T, heads*size)."""
    seqs, tokens, heads, size = x.shape
    return build.reshape(contiguous_copy(build, x), shape=(seqs * tokens, heads * size))


def _attend(build: Builder, node: Tensor, all_k: Tensor, all_v: Tensor) -> Tensor:
    """Attention of q over gathered rows (S, L, Hkv*size)."""
    q, k, v, _, _, _, table, *others = node.inputs
    all_k = build.reshape(all_k, shape=(*table.shape, *k.shape[2:]))
    all_v = build.reshape(all_v, shape=(*table.shape, *v.shape[2:]))
    turned = [build.permute(t, axes=(0, 2, 1, 3)) for t in (q, all_k, all_v)]
    out = build.flash_attn_ext(*turned, *others, **node.attrs)
    return build.reshape(out, shape=node.shape)


def _kv_attention_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    _, k, v, k_cache, v_cache, cells, table, *_ = node.inputs
    k_cache = build.set_rows(k_cache, _rows(build, k), cells)
    v_cache = build.set_rows(v_cache, _rows(build, v), cells)
    return _attend(build, node, build.get_rows(k_cache, table), build.get_rows(v_cache, table))


def decompose_without_scatter(build: Builder, node: Tensor, dtype: DType) -> RowsForm:
    """kv_attention for a device that cannot scatter.

    The last T entries of a row of `table` are this step's own cells in order, so the rows
    that are not in the caches yet come last; the caller writes them at `cells` after the step.
    They are attended to before a narrower cache has rounded them.
    """
    _, k, v, k_cache, v_cache, cells, table, *_ = node.inputs
    seqs, tokens = k.shape[:2]
    old = table.shape[1] - tokens
    gathered, writes = [], []
    for x, cache in ((k, k_cache), (v, v_cache)):
        new = _rows(build, x)
        writes.append((cache, new, cells))
        rows = build.reshape(new, shape=(seqs, tokens, new.shape[1]))
        if old:
            past = build.view(table, axis=1, start=0, stop=old)
            rows = build.concat(build.get_rows(cache, past), rows, axis=1)
        gathered.append(rows)
    return RowsForm(_attend(build, node, gathered[0], gathered[1]), tuple(writes))


OPS = (
    Operation("soft_max", _infer_soft_max, soft_max),
    Operation("flash_attn_ext", _infer_flash_attn_ext, flash_attn_ext, _flash_attn_ext_parts),
    Operation(
        "kv_attention",
        _infer_kv_attention,
        kv_attention,
        decompose=_kv_attention_parts,
        rows_form=decompose_without_scatter,
    ),
)
