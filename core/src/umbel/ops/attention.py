"""Soft maximum and attention, with ALiBi (arXiv 2108.12409), soft capping and sinks as ggml's.

S sequences, T tokens of each in this step, L cells that each looks at, H heads of size hd (hv
for values), Hkv of them in the cache. A mask value of `MASKED` (anything up to half of it)
hides a position: its weight is exactly zero, and where all are hidden the result is zero.
"""

from typing import Any

import attrs
import numpy as np

from umbel.gguf.types import F16, DType
from umbel.graph import MASKED, Builder, Operation, RowsForm, Spec, Tensor
from umbel.ops.rows import get_rows, mul_mat, set_rows
from umbel.ops.rules import Array, divides, fit, like_first, need
from umbel.ops.shape import contiguous_copy

_FLASH = (
    "q (S, H, T, hd) float, k (S, Hkv, L, hd), v (S, Hkv, L, hv), mask? (S, 1, T, L), "
    "sinks? (H)"
)
_KV = (
    "q (S, T, H, hd) float, k (S, T, Hkv, hd), v (S, T, Hkv, hv), k_cache (C, Hkv*hd) cache, "
    "v_cache (C, Hkv*hv) cache, cells (S*T) i32, table (S, L) i32, mask (S, 1, T, L), "
    "sinks? (H)"
)


@attrs.frozen
class Attention:
    """The attributes of flash_attn_ext and kv_attention."""

    scale: float
    max_bias: float = 0.0  # of ALiBi; 0 = none
    logit_softcap: float = 0.0  # 0 = none


def _infer_soft_max(x: Tensor, *mask: Tensor, max_bias: float = 0.0) -> Spec:
    alibi = max_bias == 0 or (len(x.shape) >= 3 and bool(mask))
    need(alibi, "soft_max", "x (..., heads, n, L) and a mask for max_bias", x)
    return like_first("soft_max", "x (..., L) float, mask? (broadcasts)", x, *mask)


def _infer_flash_attn_ext(*inputs: Tensor, **attributes: Any) -> Spec:
    how, n = Attention(**attributes), fit("flash_attn_ext", _FLASH, *inputs)
    fits = divides(n["Hkv"], n["H"]) and (len(inputs) > 3 or not how.max_bias)
    need(fits, "flash_attn_ext", "H a multiple of Hkv, and a mask for max_bias", *inputs)
    return Spec((n["S"], n["T"], n["H"], n["hv"]), inputs[0].dtype)


def _infer_kv_attention(*inputs: Tensor, **attributes: Any) -> Spec:
    Attention(**attributes)
    n = fit("kv_attention", _KV, *inputs)
    fits = divides(n["Hkv"], n["H"]) and n["T"] <= n["L"]
    need(fits, "kv_attention", "H a multiple of Hkv, and L at least T", *inputs)
    return Spec((n["S"] * n["T"], n["H"] * n["hv"]), inputs[0].dtype)


def _slopes(heads: int, max_bias: float) -> Array:
    """What each head multiplies the mask by; past a power of two, the odd steps between."""
    whole = 1 << (max(heads, 1).bit_length() - 1)
    steps = [*range(1, whole + 1), *(h + 0.5 for h in range(heads - whole))]
    return np.exp2(-max_bias / whole * np.array(steps[:heads], np.float32))[:, None, None]


def _weights(
    scores: Array, max_bias: float, mask: Array | None = None, sinks: Array | None = None
) -> Array:
    """Scores (which are overwritten) to weights; a sink takes a share and gives nothing."""
    if mask is not None:
        scores += mask * _slopes(scores.shape[-3], max_bias) if max_bias else mask
        np.copyto(scores, -np.inf, where=mask <= MASKED / 2)
    top = scores.max(axis=-1, keepdims=True, initial=-3e38)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    scores -= top
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, None, None] - top)
    scores /= np.where(total == 0, 1, total)
    return scores


def soft_max(x: Array, *mask: Array, max_bias: float = 0.0) -> Array:
    """exp(x + mask) over its sum along the last axis.

    A mask value of MASKED / 2 or less hides: the result is zero there, and in the whole of a
    row that is hidden. With `max_bias` the mask is multiplied by the slope of its head (the
    axis before the last two) first: ALiBi.
    """
    return _weights(x.copy(), max_bias, *mask)


def flash_attn_ext(
    q: Array, k: Array, v: Array, *mask_and_sinks: Array, **attributes: Any
) -> Array:
    """soft_max(scale q k^T + mask) v, with the heads behind the tokens: (S, T, H, hv).

    `logit_softcap` c makes c tanh(scores / c) of the scores first; a sink is one more score of
    its head that takes a share of the weights and gives nothing.
    """
    how = Attention(**attributes)
    scores = mul_mat(k, q * np.float32(how.scale))  # (S, H, T, L)
    if how.logit_softcap:
        cap = np.float32(how.logit_softcap)
        scores = np.tanh(scores / cap) * cap
    weights = _weights(scores, how.max_bias, *mask_and_sinks)
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
    how, (q, k, v, *mask_and_sinks) = Attention(**node.attrs), node.inputs
    # scaling q keeps the products within f16 where those of q and k are not
    scores = build.mul_mat(k, build.scale(q, s=how.scale / (how.logit_softcap or 1.0)))
    if how.logit_softcap:
        scores = build.scale(build.tanh(scores), s=how.logit_softcap)
    elif dtype == F16:
        scores = build.clamp(scores, min=MASKED, max=-MASKED)
    if len(mask_and_sinks) == 2:
        weights = _with_sinks(build, scores, *mask_and_sinks, max_bias=how.max_bias)
    else:
        weights = build.soft_max(scores, *mask_and_sinks, max_bias=how.max_bias)
    turned = build.permute(v, axes=(0, 1, 3, 2))
    out = build.mul_mat(turned, weights)  # (S, H, T, hv)
    return contiguous_copy(build, build.permute(out, axes=(0, 2, 1, 3)))


def _with_sinks(
    build: Builder, scores: Tensor, mask: Tensor, sinks: Tensor, *, max_bias: float
) -> Tensor:
    """A sink is one more column of scores, always seen, whose weight is dropped."""
    seqs, heads, tokens, cells = scores.shape
    nothing = build.const(np.zeros((seqs, heads, tokens, 1)))
    column = build.add(nothing, build.reshape(sinks, shape=(1, heads, 1, 1)))
    seen = build.const(np.zeros((seqs, 1, tokens, 1)))
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
        mutates=(3, 4),
    ),
)
