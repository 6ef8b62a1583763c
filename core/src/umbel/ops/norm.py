"""Normalisation over the last axis: rms_norm, norm (LayerNorm), l2_norm."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from umbel.gguf.types import F16, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.elementwise import magnitude
from umbel.ops.rules import Array, broadcasts, is_number, need, need_float

_LEAST_F16 = 6.2e-5  # the smallest f16 that keeps its full precision
_LARGE = 3e38


def _infer(name: str, most: int, x: Tensor, *others: Tensor, eps: float) -> Spec:
    need_float(name, x)
    fits = len(x.shape) > 0 and len(others) <= most
    fits = fits and all(is_number(t) and broadcasts(t.shape, x.shape) for t in others)
    expected = ("x", "x and a weight", "x, a weight and a bias")[most]
    need(fits, name, f"{expected}, broadcasting to x", x, *others)
    return Spec(x.shape, x.dtype)


def _mean(x: Array) -> Array:
    return np.add.reduce(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)


def rms_norm(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    y = x / np.sqrt(_mean(x * x) + eps)
    return y if weight is None else y * weight


def norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float
) -> Array:
    y = rms_norm(x - _mean(x), weight, eps=eps)
    return y if bias is None else y + bias


def l2_norm(x: Array, *, eps: float) -> Array:
    length = np.sqrt(np.add.reduce(x * x, axis=-1, keepdims=True))
    return x / np.maximum(length, eps)


def _level(build: Builder, x: Tensor, floor: float) -> Tensor:
    """The mean magnitude of each row, and `floor` more: no sum on the way leaves f16."""
    sizes = build.scale(magnitude(build, x), s=1 / x.shape[-1])
    return build.scale(build.sum_rows(sizes), s=1.0, b=floor)


def _centre(build: Builder, x: Tensor) -> Tensor:
    return build.sub(x, build.scale(build.sum_rows(x), s=1 / x.shape[-1]))


def _mean_square(build: Builder, x: Tensor) -> Tensor:
    """Each share is taken before it is squared: the sum is at most the length of the row."""
    return build.sum_rows(build.sqr(build.scale(x, s=x.shape[-1] ** -0.5)))


def _inverse(build: Builder, x: Tensor) -> Tensor:
    return build.div(build.scale(x, s=0.0, b=1.0), x)


def _unit(build: Builder, x: Tensor, eps: float, dtype: DType, centred: bool) -> Tensor:
    """x / sqrt(mean(x * x) + eps), of x minus its mean where `centred`.

    In f16, x is divided by its level first: then squares neither overflow nor vanish, the
    sum of a row is at most its length, and eps shrinks by the level squared.
    """
    if dtype != F16:
        y = _centre(build, x) if centred else x
        power = build.scale(build.sum_rows(build.sqr(y)), s=1 / x.shape[-1], b=eps)
        return build.div(y, build.sqrt(power))
    level = _level(build, x, max(math.sqrt(eps), 1e-4))
    y = build.div(x, level)
    y = _centre(build, y) if centred else y
    little = build.sqr(build.scale(_inverse(build, level), s=math.sqrt(eps)))
    return build.div(y, build.sqrt(build.add(_mean_square(build, y), little)))


def _norm_parts(centred: bool, build: Builder, node: Tensor, dtype: DType) -> Tensor:
    x, *weight_and_bias = node.inputs
    y = _unit(build, x, node.attrs["eps"], dtype, centred)
    for combine, t in zip((build.mul, build.add), weight_and_bias, strict=False):
        y = combine(y, t)
    return y


def _l2_norm_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    (x,), eps = node.inputs, node.attrs["eps"]
    if dtype != F16:
        length = build.sqrt(build.sum_rows(build.sqr(x)))
        return build.div(x, build.clamp(length, min=eps, max=_LARGE))
    share = x.shape[-1] ** -0.5
    level = _level(build, x, 1e-4)
    y = build.scale(build.div(x, level), s=share)
    length = build.sqrt(build.sum_rows(build.sqr(y)))
    least = build.scale(_inverse(build, level), s=eps * share, b=_LEAST_F16)
    return build.div(y, build.add(build.relu(build.sub(length, least)), least))


OPS = (
    Operation(
        "rms_norm", partial(_infer, "rms_norm", 1), rms_norm, partial(_norm_parts, False)
    ),
    Operation("norm", partial(_infer, "norm", 2), norm, partial(_norm_parts, True)),
    Operation("l2_norm", partial(_infer, "l2_norm", 0), l2_norm, _l2_norm_parts),
)
