"""Attention over the cache as the host computes it: only what is seen is read.

Sequences look at their own cells, which mostly lie side by side; causal masks and sliding
windows hide much of what is left, so queries go through in blocks.
"""

from __future__ import annotations

import numpy as np

from umbel.gguf.quants import dequantise
from umbel.gguf.types import DType
from umbel.graph import MASKED
from umbel.ops.rows import set_rows

BLOCK = 64  # queries at a time
_LOWEST = np.float32(-3e38)


def cached_attention(
    q: np.ndarray,  # (S, T, H, hd)
    k: np.ndarray,  # (S, T, Hkv, hd)
    v: np.ndarray,  # (S, T, Hkv, hv)
    k_cache: np.ndarray,  # (cells, Hkv*hd), as it is stored
    v_cache: np.ndarray,
    cells: np.ndarray,  # (S*T,)
    table: np.ndarray,  # (S, L)
    mask: np.ndarray,  # (S, 1, T, L)
    *,
    out: np.ndarray,  # (S*T, H*hv)
    dtype: DType,  # of the caches
    scale: float,
    softcap: float,
) -> None:
    """Writes k and v into the caches at `cells`, then attends over the rows `table`."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        set_rows(cache, new.reshape(len(cells), -1), cells)
    scaled = q * np.float32(scale)
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
