"""Which operators compute which operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from umbel.graph import Role, Tensor

from umbel_cann.attention import flash_attn_ext, soft_max
from umbel_cann.lowering import Lowering
from umbel_cann.norms import norm, rms_norm
from umbel_cann.products import mul_mat
from umbel_cann.program import RowCopies
from umbel_cann.states import integers
from umbel_cann.views import (
    BYTES,
    ONE,
    Argument,
    Numbers,
    Scalar,
    Unsupported,
    Views,
    type_of,
)

Lower = Callable[[Lowering, Tensor], None]


def _binary(operator: str, *more: Argument) -> Lower:
    """The second operand broadcasts as in NumPy."""

    def lower(to: Lowering, node: Tensor) -> None:
        number = type_of(node.dtype)
        a, b = (to.operand(t, number) for t in node.inputs)
        to.emit(operator, a, b, *more, to.view(node))

    return lower


def _unary(operator: str) -> Lower:
    def lower(to: Lowering, node: Tensor) -> None:
        x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
        to.emit(operator, x, to.view(node))

    return lower


def _sqr(to: Lowering, node: Tensor) -> None:
    x = to.operand(node.inputs[0], type_of(node.dtype))
    to.emit("Mul", x, x, to.view(node))


def _sqrt(to: Lowering, node: Tensor) -> None:
    """Where there is none: the square of rsqrt(rsqrt(x)), which is right for 0 too."""
    if to.why_not("Sqrt", type_of(node.dtype)) is None:
        return _unary("Sqrt")(to, node)
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    inverse, root = (to.temporary(x.shape, x.type) for _ in range(2))
    to.emit("Rsqrt", x, inverse)
    to.emit("Rsqrt", inverse, root)
    to.emit("Mul", root, root, to.view(node))
    return None


def _exp(to: Lowering, node: Tensor) -> None:
    """Where there is none: a power of e."""
    if to.why_not("Exp", type_of(node.dtype)) is None:
        return _unary("Exp")(to, node)
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    to.emit("PowScalarTensor", Scalar(float(np.e)), x, to.view(node))
    return None


def _scale(to: Lowering, node: Tensor) -> None:
    """x s + b"""
    x, out = to.operand(node.inputs[0], type_of(node.dtype)), to.view(node)
    s, b = node.attrs["s"], node.attrs.get("b", 0.0)
    if s != 1 or not b:
        into = to.temporary(x.shape, x.type) if b else out
        to.emit("Muls", x, Scalar(s), into)
        x = into
    if b:
        to.emit("Adds", x, Scalar(b), ONE, out)


def _clamp(to: Lowering, node: Tensor) -> None:
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    least, most = Scalar(node.attrs["min"]), Scalar(node.attrs["max"])
    to.emit("Clamp", x, least, most, to.view(node))


def _cast(to: Lowering, node: Tensor) -> None:
    to.emit("Cast", to.stored(node.inputs[0]), type_of(node.dtype), to.stored(node))


def _cont(to: Lowering, node: Tensor) -> None:
    to.emit("InplaceCopy", to.stored(node), to.stored(node.inputs[0]))


def _concat(to: Lowering, node: Tensor) -> None:
    """Strided parts are copied into their place: one operator fails on them."""
    parts, axis = [to.view(t) for t in node.inputs], node.attrs["axis"]
    out, at = to.view(node), 0
    if to.why_not("Cat", out.type) is None and all(part.dense for part in parts):
        to.emit("Cat", Views(tuple(parts)), axis, out)
        return
    for part in parts:
        end = at + part.shape[axis]
        to.emit("InplaceCopy", out.part(axis, at, end), part)
        at = end


def _sum_rows(to: Lowering, node: Tensor) -> None:
    x, out = to.dense(to.operand(node.inputs[0], type_of(node.dtype))), to.view(node)
    last = Numbers((len(x.shape) - 1,))
    if to.why_not("ReduceSum", x.type) is None:
        to.emit("ReduceSum", x, last, True, out.type, out)
        return
    mean = to.temporary(out.shape, out.type)
    to.emit("Mean", x, last, True, out.type, mean)
    to.emit("Muls", mean, Scalar(x.shape[-1]), out)


def _get_rows(to: Lowering, node: Tensor) -> None:
    table, ids = node.inputs
    if len(table.shape) != 2:
        msg = "get_rows of several matrices at once"
        raise Unsupported(msg)
    rows, index = to.view(table), to.dense(to.view(ids))
    index = index.reshaped(index.size)
    made = to.result(node, rows.type)
    flat = made.reshaped(index.size, table.shape[1])
    if to.chip.gather == "Embedding":
        to.emit("Embedding", rows, index, flat)
    else:
        to.emit(to.chip.gather, rows, 0, index, flat)
    to.finish(node, made)


def _set_rows(to: Lowering, node: Tensor) -> None:
    state, source, ids = node.inputs
    target = to.stored(state)
    rows = to.dense(to.operand(source, target.type))
    if to.chip.scatters:
        index = to.dense(to.view(ids))
        to.emit("InplaceIndexCopy", target, 0, index.reshaped(index.size), rows)
        return
    storage = ids.storage
    if storage.role is not Role.INPUT or ids.shape != storage.shape or not target.dense:
        msg = "set_rows to where the host does not know"
        raise Unsupported(msg)
    known = integers(storage, to.slots) if to.slots else lambda: None
    to.launch(RowCopies(target, rows, target.shape[1] * BYTES[target.type], known, node))


LOWERINGS: Mapping[str, Lower] = {
    "add": _binary("Add", ONE),
    "sub": _binary("Sub", ONE),
    "mul": _binary("Mul"),
    "div": _binary("Div"),
    "sqr": _sqr,
    "sqrt": _sqrt,
    "exp": _exp,
    "neg": _unary("Neg"),
    "tanh": _unary("Tanh"),
    "relu": _unary("Relu"),
    "sigmoid": _unary("Sigmoid"),
    "silu": _unary("Silu"),
    "scale": _scale,
    "clamp": _clamp,
    "cast": _cast,
    "cont": _cont,
    "concat": _concat,
    "sum_rows": _sum_rows,
    "rms_norm": rms_norm,
    "norm": norm,
    "soft_max": soft_max,
    "flash_attn_ext": flash_attn_ext,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "mul_mat": mul_mat,
}
