"""Elementwise operations, and activation functions from simpler ones.

The second operand of a binary operation broadcasts to the first as in NumPy. Infinities on the
way are meant: whoever calls a reference does so under `np.errstate(all="ignore")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from umbel.gguf.types import BY_NAME, DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.rules import Array, broadcasts, is_number, need, result_dtype

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702

# Polynomials in the square, highest power first, fitted for the least largest error:
# log((1 + s) / (1 - s)) / s for |s| <= 1/3 (1.7e-7 of it)
_LOG_RATIO = (0.34226512, 0.39589398, 0.66676005, 1.99999967)
# log(F(x) / (1 - F(x))) / x, F the normal distribution function (3.1e-6 in x F(x))
_NORMAL_LOGIT = (2.22526526e-6, -6.09344281e-5, -2.50952247e-4, 0.0729398613, 1.59565515)


def _infer_unary(name: str, x: Tensor) -> Spec:
    need(is_number(x), name, "a tensor of real numbers", x)
    return Spec(x.shape, result_dtype(x))


def _infer_binary(name: str, a: Tensor, b: Tensor) -> Spec:
    need(is_number(a) and is_number(b), name, "tensors of real numbers", a, b)
    fits = broadcasts(b.shape, a.shape)
    need(fits, name, "a second operand that broadcasts to the first", a, b)
    return Spec(a.shape, result_dtype(a))


def _infer_scale(x: Tensor, *, s: float, b: float = 0.0) -> Spec:
    return _infer_unary("scale", x)


def _infer_clamp(x: Tensor, *, min: float, max: float) -> Spec:  # noqa: A002
    need(min <= max, "clamp", "min <= max", x, attribute=f"min={min}, max={max}")
    return _infer_unary("clamp", x)


def _infer_cast(x: Tensor, *, dtype: str) -> Spec:
    known = dtype in BY_NAME and not BY_NAME[dtype].quantised and not x.dtype.quantised
    need(known, "cast", "a dtype that is not quantised", x, attribute=f"dtype={dtype!r}")
    return Spec(x.shape, BY_NAME[dtype])


def _infer_cont(x: Tensor) -> Spec:
    need(not x.dtype.quantised, "cont", "a tensor that is not quantised", x)
    return Spec(x.shape, x.dtype)


def scale(x: Array, *, s: float, b: float = 0.0) -> Array:
    return x * s + b if b else x * s


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))  # exp(-x) = inf is the right way to 0


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(_GELU * x * (1 + _CUBIC * x * x)))


def gelu_quick(x: Array) -> Array:
    return x * sigmoid(_QUICK * x)


def gelu_erf(x: Array) -> Array:
    """relu(x) - |x| erfc(|x| / sqrt 2) / 2; erfc by Abramowitz and Stegun 7.1.26 (1.5e-7)."""
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * size)
    erfc = 1.061405429 * t
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        erfc += c
        erfc *= t
    erfc *= np.exp(-0.5 * x * x)
    return np.maximum(x, 0) - 0.5 * size * erfc


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def softplus(x: Array) -> Array:
    return np.logaddexp(np.float32(0), x)


def _clamp(x: Array, *, min: float, max: float) -> Array:  # noqa: A002
    return np.minimum(np.maximum(x, min), max)


def cast(x: Array, *, dtype: str) -> Array:
    numpy = BY_NAME[dtype].numpy
    return to_bf16(x) if numpy is None else x.astype(numpy)


def to_bf16(x: Array) -> Array:
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    kept = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), kept)


def magnitude(build: Builder, x: Tensor) -> Tensor:
    """|x|"""
    return build.add(build.relu(x), build.relu(build.neg(x)))


def _polynomial(build: Builder, x: Tensor, coefficients: Sequence[float]) -> Tensor:
    first, second, *others = coefficients
    y = build.scale(x, s=first, b=second)
    for c in others:
        y = build.scale(build.mul(y, x), s=1.0, b=c)
    return y


def _silu_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    (x,) = node.inputs
    return build.mul(x, build.sigmoid(x))


def _gelu_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """x (1 + tanh y) / 2 is x sigmoid(2 y); where the cube leaves f16, that is x or 0."""
    (x,) = node.inputs
    y = build.mul(build.scale(build.sqr(x), s=2 * _GELU * _CUBIC, b=2 * _GELU), x)
    return build.mul(x, build.sigmoid(y))


def _gelu_erf_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """x F(x) with the normal distribution function F as a sigmoid of an odd polynomial."""
    (x,) = node.inputs
    logit = build.mul(_polynomial(build, build.sqr(x), _NORMAL_LOGIT), x)
    return build.mul(x, build.sigmoid(logit))


def _gelu_quick_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    (x,) = node.inputs
    return build.mul(x, build.sigmoid(build.scale(x, s=_QUICK)))


def _softplus_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """relu(x) + log(1 + e), e = exp(-|x|) <= 1.

    1 + e would lose a small e in f16, and with it the small time steps of a mamba; so
    log(1 + e) is taken as log((1 + s) / (1 - s)) with s = e / (2 + e) <= 1/3.
    """
    (x,) = node.inputs
    e = build.exp(build.neg(magnitude(build, x)))
    s = build.div(e, build.scale(e, s=1.0, b=2.0))
    log = build.mul(_polynomial(build, build.sqr(s), _LOG_RATIO), s)
    return build.add(build.relu(x), log)


_Decompose = Callable[[Builder, Tensor, DType], Tensor]


def _unary(
    name: str, reference: Callable[..., Array], decompose: _Decompose | None = None
) -> Operation:
    rule = partial(_infer_unary, name)
    return Operation(name, rule, reference, decompose, in_place=True)


def _binary(name: str, reference: Callable[..., Array]) -> Operation:
    return Operation(name, partial(_infer_binary, name), reference, in_place=True)


OPS = (
    _binary("add", np.add),
    _binary("sub", np.subtract),
    _binary("mul", np.multiply),
    _binary("div", np.divide),
    _unary("sqr", np.square),
    _unary("sqrt", np.sqrt),
    _unary("exp", np.exp),
    _unary("log", np.log),
    _unary("neg", np.negative),
    _unary("relu", relu),
    _unary("sigmoid", sigmoid),
    _unary("tanh", np.tanh),
    _unary("silu", silu, _silu_parts),
    _unary("gelu", gelu, _gelu_parts),
    _unary("gelu_erf", gelu_erf, _gelu_erf_parts),
    _unary("gelu_quick", gelu_quick, _gelu_quick_parts),
    _unary("softplus", softplus, _softplus_parts),
    Operation("scale", _infer_scale, scale, in_place=True),
    Operation("clamp", _infer_clamp, _clamp, in_place=True),
    Operation("cast", _infer_cast, cast),
    Operation("cont", _infer_cont, np.ascontiguousarray),
)
