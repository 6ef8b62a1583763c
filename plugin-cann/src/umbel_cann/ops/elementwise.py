"""Arithmetic and activation functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.views import FLOAT, ONE, Argument, Numbers, Scalar, Unsupported, View, type_of

Lower = Callable[[Lowering, Tensor], None]

# log(1 + e) for e <= 1, within 2.3e-5 of it: _FIRST (s + _SECOND s^2 + _THIRD s^3) with
# s = e / (_SHIFT + e)
_SHIFT, _FIRST = 2.32, 2.31995
_SECOND, _THIRD = -0.365658 / _FIRST, 1.007363 / _FIRST


def binary(operator: str, *more: Argument) -> Lower:
    """The second operand broadcasts as in NumPy."""

    def lower(to: Lowering, node: Tensor) -> None:
        number = type_of(node.dtype)
        a, b = (to.operand(t, number) for t in node.inputs)
        to.emit(operator, a, b, *more, to.view(node))

    return lower


def add(to: Lowering, node: Tensor) -> None:
    """Of operands that are divided by different powers one is scaled on the way. Where a chip
    takes float32 and float16 at once, a product need not be cast for it."""
    number = type_of(node.dtype)
    if to.chip.mixes and number == FLOAT:
        a, b = (to.known(t) for t in node.inputs)
        to.emit("Add", a, b, ONE, to.view(node))
        return
    one, two = sorted(node.inputs, key=to.power, reverse=True)
    factor = Scalar(2.0 ** (to.power(two) - to.power(one)))
    to.emit("Add", to.operand(one, number), to.operand(two, number), factor, to.view(node))


def unary(operator: str, *more: Argument) -> Lower:
    def lower(to: Lowering, node: Tensor) -> None:
        x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
        to.emit(operator, x, *more, to.view(node))

    return lower


def sqr(to: Lowering, node: Tensor) -> None:
    x = to.operand(node.inputs[0], type_of(node.dtype))
    to.emit("Mul", x, x, to.view(node))


def sqrt(to: Lowering, node: Tensor) -> None:
    """Where there is none: the square of rsqrt(rsqrt(x)), which is right for 0 too."""
    if to.why_not("Sqrt", type_of(node.dtype)) is None:
        return unary("Sqrt")(to, node)
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    inverse, root = (to.temporary(x.shape, x.type) for _ in range(2))
    to.emit("Rsqrt", x, inverse)
    to.emit("Rsqrt", inverse, root)
    to.emit("Mul", root, root, to.view(node))
    return None


def exp(to: Lowering, node: Tensor) -> None:
    exp_of(to, to.dense(to.operand(node.inputs[0], type_of(node.dtype))), to.view(node))


def exp_of(to: Lowering, x: View, out: View) -> None:
    """Where there is none: a power of e."""
    if to.why_not("Exp", x.type) is None:
        to.emit("Exp", x, out)
    else:
        to.emit("PowScalarTensor", Scalar(float(np.e)), x, out)


def tanh_of(to: Lowering, x: View, out: View) -> None:
    """Where there is none: 2 sigmoid(2 x) - 1, with an error that is small beside 1, not x."""
    if to.why_not("Tanh", x.type) is None:
        to.emit("Tanh", x, out)
        return
    a, b = (to.temporary(x.shape, x.type) for _ in range(2))
    to.emit("Muls", x, Scalar(2.0), a)
    to.emit("Sigmoid", a, b)
    to.emit("Muls", b, Scalar(2.0), a)
    to.emit("Adds", a, Scalar(-1.0), ONE, out)


def gelu_erf(to: Lowering, node: Tensor) -> None:
    """The operator adds 1 to what is nearly -1; what is lost so is below float16's range."""
    if type_of(node.dtype) == FLOAT:
        msg = "aclnnGeluV2 loses small results, which float32 has"
        raise Unsupported(msg)
    unary("GeluV2", 0)(to, node)


def softplus(to: Lowering, node: Tensor) -> None:
    """Who computes log(1 + e) in float16 loses all of a small e."""
    if type_of(node.dtype) != FLOAT:
        msg = "aclnnSoftplus might lose small results in float16"
        raise Unsupported(msg)
    unary("Softplus", ONE, Scalar(20.0))(to, node)


def softplus_of(to: Lowering, x: View) -> View:
    """log(1 + exp(x)) of finite values, also where there is neither a logarithm nor a maximum:
    x / 2 + |x| / 2 + log(1 + exp(-|x|))."""
    out = to.temporary(x.shape, x.type)
    if x.type == FLOAT and to.why_not("Softplus", FLOAT) is None:
        to.emit("Softplus", x, ONE, Scalar(20.0), out)
        return out
    size, e, s, square, cube, sum_ = (to.temporary(x.shape, x.type) for _ in range(6))
    to.emit("Norm", x.reshaped(*x.shape, 1), ONE, Numbers((len(x.shape),)), False, size)
    to.emit("PowScalarTensor", Scalar(float(np.exp(-1.0))), size, e)
    to.emit("Adds", e, Scalar(_SHIFT), ONE, sum_)
    to.emit("Div", e, sum_, s)
    to.emit("Mul", s, s, square)
    to.emit("Mul", s, square, cube)
    to.emit("Muls", x, Scalar(0.5), e)
    to.emit("Add", e, size, Scalar(0.5), sum_)
    to.emit("Add", s, square, Scalar(_SECOND), e)
    to.emit("Add", e, cube, Scalar(_THIRD), s)
    to.emit("Add", sum_, s, Scalar(_FIRST), out)
    return out


def scale(to: Lowering, node: Tensor) -> None:
    """x s + b"""
    x, out = to.operand(node.inputs[0], type_of(node.dtype)), to.view(node)
    s, b = node.attrs["s"], node.attrs.get("b", 0.0)
    if s != 1 or not b:
        into = to.temporary(x.shape, x.type) if b else out
        to.emit("Muls", x, Scalar(s), into)
        x = into
    if b:
        to.emit("Adds", x, Scalar(b), ONE, out)


def clamp(to: Lowering, node: Tensor) -> None:
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    least, most = Scalar(node.attrs["min"]), Scalar(node.attrs["max"])
    to.emit("Clamp", x, least, most, to.view(node))


def cast(to: Lowering, node: Tensor) -> None:
    to.emit("Cast", to.stored(node.inputs[0]), type_of(node.dtype), to.stored(node))
