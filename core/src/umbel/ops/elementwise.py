"""Elementwise operations: arithmetic, activation functions, and gated linear units.

The second operand of a binary operation broadcasts to the first as in NumPy. A gated linear
unit is activation(gate) * up (Shazeer 2020, arXiv 2002.05202). Infinities on the way are meant:
whoever calls a reference does so under `np.errstate(all="ignore")`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from umbel.gguf.types import BY_NAME, DType, dequantise, quantise
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops.rules import Array, like_first, need

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702

# Polynomials in the square, highest power first, fitted for the least largest error:
# log((1 + s) / (1 - s)) / s for |s| <= 1/3 (1.7e-7 of it)
_LOG_RATIO = (0.34226512, 0.39589398, 0.66676005, 1.99999967)
# log(F(x) / (1 - F(x))) / x, F the normal distribution function (3.1e-6 in x F(x))
_NORMAL_LOGIT = (2.22526526e-6, -6.09344281e-5, -2.50952247e-4, 0.0729398613, 1.59565515)
# the same of the approximation by tanh: (1 + tanh y) / 2 is sigmoid(2 y)
_TANH_LOGIT = (2 * _GELU * _CUBIC, 2 * _GELU)

# erfc(x) exp(x * x) / t in t = 1 / (1 + 0.3275911 x) (Abramowitz and Stegun 7.1.26, 1.5e-7)
_ERFC = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

_Decompose = Callable[[Builder, Tensor, DType], Tensor]


def _infer_scale(x: Tensor, *, s: float, b: float = 0.0) -> Spec:
    return like_first("scale", "x (...)", x)


def _infer_clamp(x: Tensor, *, min: float, max: float) -> Spec:  # noqa: A002
    need(min <= max, "clamp", "min <= max", x, min=min, max=max)
    return like_first("clamp", "x (...)", x)


def _infer_cast(x: Tensor, *, dtype: str) -> Spec:
    known = dtype in BY_NAME and not BY_NAME[dtype].quantised and not x.dtype.quantised
    need(known, "cast", "a dtype that is not quantised", x, dtype=dtype)
    return Spec(x.shape, BY_NAME[dtype])


def _infer_cont(x: Tensor) -> Spec:
    need(not x.dtype.quantised, "cont", "a tensor that is not quantised", x)
    return Spec(x.shape, x.dtype)


def scale(x: Array, *, s: float, b: float = 0.0) -> Array:
    """x s + b"""
    return x * s + b if b else x * s


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))  # exp(-x) = inf is the right way to 0


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The approximation by tanh; gelu_erf is exact."""
    return 0.5 * x * (1 + np.tanh(_GELU * x * (1 + _CUBIC * x * x)))


def gelu_quick(x: Array) -> Array:
    return x * sigmoid(_QUICK * x)


def gelu_erf(x: Array) -> Array:
    """relu(x) - |x| erfc(|x| / sqrt 2) / 2"""
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * size)
    erfc = t * np.polyval(np.array(_ERFC, np.float32), t) * np.exp(-0.5 * x * x)
    return np.maximum(x, 0) - 0.5 * size * erfc


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def softplus(x: Array) -> Array:
    """log(1 + exp(x))"""
    return np.logaddexp(np.float32(0), x)


def _clamp(x: Array, *, min: float, max: float) -> Array:  # noqa: A002
    """From min to max: what lies beyond becomes the nearer of them."""
    return np.minimum(np.maximum(x, min), max)


def cast(x: Array, *, dtype: str) -> Array:
    """The values rounded to another dtype."""
    to = BY_NAME[dtype]
    if to.numpy is not None:
        return x.astype(to.numpy)
    return dequantise(quantise(x, to), to).reshape(x.shape)  # bf16, held as float32


def magnitude(build: Builder, x: Tensor) -> Tensor:
    """|x|"""
    return build.add(build.relu(x), build.relu(build.neg(x)))


def _odd(build: Builder, x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """x p(x * x) with the polynomial p of these coefficients."""
    first, second, *others = coefficients
    square = build.sqr(x)
    y = build.scale(square, s=first, b=second)
    for c in others:
        y = build.scale(build.mul(y, square), s=1.0, b=c)
    return build.mul(y, x)


def _sigmoid_parts(logit: Callable[[Builder, Tensor], Tensor]) -> _Decompose:
    """x sigmoid(logit(x)); where the logit leaves f16, that is x or 0."""

    def parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
        (x,) = node.inputs
        return build.mul(x, build.sigmoid(logit(build, x)))

    return parts


def _softplus_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """relu(x) + log(1 + e), e = exp(-|x|) <= 1.

    1 + e would lose a small e in f16, and with it the small time steps of a mamba; so
    log(1 + e) is taken as log((1 + s) / (1 - s)) with s = e / (2 + e) <= 1/3.
    """
    (x,) = node.inputs
    e = build.exp(build.neg(magnitude(build, x)))
    s = build.div(e, build.scale(e, s=1.0, b=2.0))
    return build.add(build.relu(x), _odd(build, s, _LOG_RATIO))


def _elementwise(
    rule: str, name: str, reference: Callable[..., Array], decompose: _Decompose | None = None
) -> Operation:
    infer = partial(like_first, name, rule)
    return Operation(name, infer, reference, decompose, in_place=True)


_unary = partial(_elementwise, "x (...)")
_binary = partial(_elementwise, "a (...), b (broadcasts)")


def _glu(name: str, activation: str, function: Callable[[Array], Array]) -> Operation:
    def reference(gate: Array, up: Array) -> Array:
        return function(gate) * up

    def parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
        gate, up = node.inputs
        return build.mul(build.apply(build.ops[activation], gate), up)

    return _elementwise("gate (...) float, up (same) float", name, reference, parts)


_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_UNARY = {"sqr": np.square, "sqrt": np.sqrt, "exp": np.exp, "neg": np.negative, "tanh": np.tanh}

OPS = (
    *(_binary(name, function) for name, function in _BINARY.items()),
    *(_unary(name, function) for name, function in _UNARY.items()),
    _unary("relu", relu),
    _unary("sigmoid", sigmoid),
    _unary("softplus", softplus, _softplus_parts),
    _unary("silu", silu, _sigmoid_parts(lambda _, x: x)),
    _unary("gelu", gelu, _sigmoid_parts(partial(_odd, coefficients=_TANH_LOGIT))),
    _unary("gelu_erf", gelu_erf, _sigmoid_parts(partial(_odd, coefficients=_NORMAL_LOGIT))),
    _unary("gelu_quick", gelu_quick, _sigmoid_parts(lambda build, x: build.scale(x, s=_QUICK))),
    _glu("reglu", "relu", relu),
    _glu("swiglu", "silu", silu),
    _glu("geglu", "gelu", gelu),
    _glu("geglu_erf", "gelu_erf", gelu_erf),
    _glu("geglu_quick", "gelu_quick", gelu_quick),
    Operation("scale", _infer_scale, scale, in_place=True),
    Operation("clamp", _infer_clamp, _clamp, in_place=True),
    Operation("cast", _infer_cast, cast),
    Operation("cont", _infer_cont, np.ascontiguousarray),
)
