"""Normalisation over the last axis: rms_norm and norm (LayerNorm)."""

import math
from functools import partial

import numpy as np

from umbel.gguf.types import F16, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.elementwise import magnitude
from umbel.ops.rules import Array, like_first


def _infer_rms_norm(x: Tensor, *weight: Tensor, eps: float) -> Spec:
    return like_first("rms_norm", "x (..., n) float, weight? (broadcasts)", x, *weight)


def _infer_norm(x: Tensor, *others: Tensor, eps: float) -> Spec:
    rule = "x (..., n) float, weight? (broadcasts), bias? (broadcasts)"
    return like_first("norm", rule, x, *others)


def _mean(x: Array) -> Array:
    return np.add.reduce(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)


def rms_norm(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    """x / sqrt(mean(x * x) + eps) * weight, the mean over the last axis."""
    y = x / np.sqrt(_mean(x * x) + eps)
    return y if weight is None else y * weight


def norm(x: Array, *weight_and_bias: Array, eps: float) -> Array:
    """rms_norm of x less its mean, and the bias added."""
    y = rms_norm(x - _mean(x), *weight_and_bias[:1], eps=eps)
    return y + weight_and_bias[1] if len(weight_and_bias) == 2 else y


def _norm_parts(centred: bool, build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """x / sqrt(mean(x * x) + eps), of x minus its mean where `centred`.

    In f16, x is divided by its level first, the mean magnitude of a row and a floor: then
    squares neither overflow nor vanish, the sum of a row is at most its length, and eps shrinks
    by the level squared.
    """
    x, *weight_and_bias = node.inputs
    n, eps = x.shape[-1], node.attrs["eps"]
    if dtype == F16:
        sizes = build.scale(magnitude(build, x), s=1 / n)
        level = build.scale(build.sum_rows(sizes), s=1.0, b=max(math.sqrt(eps), 1e-4))
        x = build.div(x, level)
    if centred:
        x = build.sub(x, build.scale(build.sum_rows(x), s=1 / n))
    if dtype == F16:
        power = build.sum_rows(build.sqr(build.scale(x, s=n**-0.5)))
        inverse = build.div(build.scale(level, s=0.0, b=1.0), level)
        power = build.add(power, build.sqr(build.scale(inverse, s=math.sqrt(eps))))
    else:
        power = build.scale(build.sum_rows(build.sqr(x)), s=1 / n, b=eps)
    y = build.div(x, build.sqrt(power))
    for combine, t in zip((build.mul, build.add), weight_and_bias, strict=False):
        y = combine(y, t)
    return y


OPS = (
    Operation("rms_norm", _infer_rms_norm, rms_norm, partial(_norm_parts, False)),
    Operation("norm", _infer_norm, norm, partial(_norm_parts, True)),
)
