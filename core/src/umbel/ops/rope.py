"""Rotary position embedding (arXiv 2104.09864) with YaRN (arXiv 2309.00071), as ggml's.

Mode `norm` turns neighbours (2i, 2i + 1), mode `neox` turns (i, i + n_dims / 2). Angles are
computed in float64: float32 loses a position of a long context.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from umbel.gguf.types import F32, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.rules import Array, is_index, is_number, need, need_float
from umbel.ops.shape import contiguous_copy

_MODES = ("norm", "neox")


@attrs.frozen
class Frequencies:
    """The attributes of rope_cos_sin; those of rope are these and `mode`."""

    n_dims: int
    freq_base: float
    freq_scale: float = 1.0
    ext_factor: float = 0.0  # of YaRN; 0 = none
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0

    def turning(self, turns: float) -> float:
        """The pair of dimensions that makes `turns` full turns over the original context."""
        length = self.n_ctx_orig / (turns * 2 * math.pi)
        return self.n_dims * math.log(length) / (2 * math.log(self.freq_base))


def _infer_table(positions: Tensor, *factors: Tensor, **attributes: Any) -> Spec:
    how, inputs = Frequencies(**attributes), (positions, *factors)
    half = how.n_dims // 2
    fits = len(positions.shape) == 1 and is_index(positions) and len(factors) <= 1
    fits = fits and all(f.shape == (half,) and is_number(f) for f in factors)
    fits = fits and how.n_dims > 0 and how.n_dims % 2 == 0
    fits = fits and how.freq_base > 0 and how.freq_scale > 0
    fits = fits and (how.ext_factor == 0 or (how.n_ctx_orig > 0 and how.freq_base > 1))
    expected = (
        "positions (n,) i32, factors (n_dims/2,), n_dims even, frequencies above 0; "
        "n_ctx_orig above 0 where ext_factor is not 0"
    )
    need(fits, "rope_cos_sin", expected, *inputs, attribute=how)
    return Spec((2, positions.shape[0], half), F32)


def _infer_rope(
    x: Tensor, positions: Tensor, *factors: Tensor, mode: str, **attributes: Any
) -> Spec:
    need_float("rope", x)
    _infer_table(positions, *factors, **attributes)
    n_dims = attributes["n_dims"]
    fits = len(x.shape) == 3 and x.shape[:1] == positions.shape and n_dims <= x.shape[2]
    expected = "x (tokens, heads, head_dim), positions (tokens,), n_dims <= head_dim"
    need(fits, "rope", expected, x, positions, attribute=f"n_dims={n_dims}")
    need(mode in _MODES, "rope", f"mode {' or '.join(_MODES)}", x, attribute=f"mode={mode!r}")
    return Spec(x.shape, x.dtype)


def _per_position(how: Frequencies) -> tuple[Array, float]:
    """The angle of each pair per position, and what cosines and sines are multiplied by."""
    pair = np.arange(how.n_dims // 2)
    plain = float(how.freq_base) ** (-2.0 * pair / how.n_dims)
    if how.ext_factor == 0:
        return plain * how.freq_scale, how.attn_factor
    low = max(0, math.floor(how.turning(how.beta_fast)))
    high = min(how.n_dims - 1, math.ceil(how.turning(how.beta_slow)))
    kept = how.ext_factor * (1 - np.clip((pair - low) / max(0.001, high - low), 0, 1))
    mixed = plain * (how.freq_scale * (1 - kept) + kept)
    return mixed, how.attn_factor * (1 + 0.1 * math.log(1 / how.freq_scale))


@lru_cache(maxsize=4)
def _table(how: Frequencies, positions: bytes, *factors: bytes) -> Array:
    """What all layers of a step share; hence it is kept, and read only."""
    frequency, size = _per_position(how)
    for f in factors:
        frequency = frequency / np.frombuffer(f, np.float32)
    angle = np.frombuffer(positions, np.int32)[:, None] * frequency
    table = np.array((np.cos(angle) * size, np.sin(angle) * size), np.float32)
    table.flags.writeable = False
    return table


def rope_cos_sin(positions: Array, *factors: Array, **attributes: Any) -> Array:
    data = (np.asarray(f, np.float32).tobytes() for f in factors)
    return _table(Frequencies(**attributes), np.asarray(positions, np.int32).tobytes(), *data)


def rope(x: Array, positions: Array, *factors: Array, mode: str, **attributes: Any) -> Array:
    cos, sin = rope_cos_sin(positions, *factors, **attributes)[:, :, None]
    n_dims = attributes["n_dims"]
    if mode == "neox":
        one, two = slice(0, n_dims // 2), slice(n_dims // 2, n_dims)
    else:
        one, two = slice(0, n_dims, 2), slice(1, n_dims, 2)
    a, b = x[..., one], x[..., two]
    out = np.empty_like(x, order="C")
    out[..., one] = a * cos - b * sin
    out[..., two] = a * sin + b * cos
    out[..., n_dims:] = x[..., n_dims:]
    return out


def _rope_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    x, *where = node.inputs
    attributes = dict(node.attrs)
    axis = 2 if attributes.pop("mode") == "neox" else 3
    (tokens, heads, head_dim), n_dims = x.shape, node.attrs["n_dims"]
    turned = contiguous_copy(build, build.view(x, axis=2, start=0, stop=n_dims))
    # the partners of a pair lie along the third axis (neox) or the fourth (norm)
    pairs = (2, n_dims // 2) if axis == 2 else (n_dims // 2, 2)
    turned = build.reshape(turned, shape=(tokens, heads, *pairs))
    a, b = (build.view(turned, axis=axis, start=i, stop=i + 1) for i in range(2))
    table = build.rope_cos_sin(*where, **attributes)
    halves = (build.view(table, axis=0, start=i, stop=i + 1) for i in range(2))
    cos, sin = (build.reshape(t, shape=(tokens, 1, *a.shape[2:])) for t in halves)
    first = build.sub(build.mul(a, cos), build.mul(b, sin))
    second = build.add(build.mul(a, sin), build.mul(b, cos))
    out = build.concat(first, second, axis=axis)
    out = build.reshape(out, shape=(tokens, heads, n_dims))
    if n_dims == head_dim:
        return out
    return build.concat(out, build.view(x, axis=2, start=n_dims, stop=head_dim), axis=2)


OPS = (
    Operation("rope_cos_sin", _infer_table, rope_cos_sin),
    Operation("rope", _infer_rope, rope, _rope_parts),
)
