"""Rotary position embedding (arXiv 2104.09864) with YaRN (arXiv 2309.00071), as ggml's.

Mode `norm` turns neighbours (2i, 2i + 1), mode `neox` turns (i, i + n_dims / 2). Angles are
computed in float64: float32 loses a position of a long context.
"""

import math
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from umbel.gguf.types import F32, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.rules import Array, fit, need
from umbel.ops.shape import contiguous_copy


@attrs.frozen
class Rope:
    """The attributes of rope; those of rope_cos_sin are all but the mode."""

    n_dims: int
    mode: str = ""  # "norm": neighbours are a pair, "neox": halves are
    freq_base: float = 10000.0
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
    how, half = Rope(**attributes), attributes["n_dims"] // 2
    n = fit("rope_cos_sin", "positions (n) i32, factors? (half)", positions, *factors)
    fits = how.n_dims > 0 and how.n_dims % 2 == 0 and n.get("half", half) == half
    fits = fits and how.freq_base > 0 and how.freq_scale > 0
    fits = fits and (how.ext_factor == 0 or (how.n_ctx_orig > 0 and how.freq_base > 1))
    expected = "n_dims even and above 0, a factor for each pair, n_ctx_orig above 0 for YaRN"
    need(fits, "rope_cos_sin", expected, positions, *factors, **attributes)
    return Spec((2, n["n"], half), F32)


def _infer_rope(x: Tensor, *where: Tensor, mode: str, **attributes: Any) -> Spec:
    rule = "x (n, heads, head_dim) float, positions (n) i32, factors? (half)"
    n = fit("rope", rule, x, *where)
    _infer_table(*where, **attributes)
    fits = mode in ("norm", "neox") and attributes["n_dims"] <= n["head_dim"]
    expected = "mode norm or neox, n_dims up to head_dim"
    need(fits, "rope", expected, x, mode=mode, n_dims=attributes["n_dims"])
    return Spec(x.shape, x.dtype)


def _per_position(how: Rope) -> tuple[Array, float]:
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
def _table(how: Rope, positions: bytes, *factors: bytes) -> Array:
    """What all layers of a step share; hence it is kept, and read only."""
    frequency, size = _per_position(how)
    for f in factors:
        frequency = frequency / np.frombuffer(f, np.float32)
    angle = np.frombuffer(positions, np.int32)[:, None] * frequency
    table = np.array((np.cos(angle) * size, np.sin(angle) * size), np.float32)
    table.flags.writeable = False
    return table


def rope_cos_sin(positions: Array, *factors: Array, **attributes: Any) -> Array:
    """The cosines, and after them the sines, of each position's angles: (2, n, n_dims / 2)."""
    data = (np.asarray(f, np.float32).tobytes() for f in factors)
    return _table(Rope(**attributes), np.asarray(positions, np.int32).tobytes(), *data)


def rope(x: Array, positions: Array, *factors: Array, mode: str, **attributes: Any) -> Array:
    """Turns the pairs of the first n_dims values of each head by the angles of its position;
    `factors` divide the frequencies."""
    cos, sin = rope_cos_sin(positions, *factors, **attributes)[:, :, None]
    n_dims = attributes["n_dims"]
    apart, step = (n_dims // 2, 1) if mode == "neox" else (1, 2)
    one, two = slice(0, n_dims - apart, step), slice(apart, n_dims, step)
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
