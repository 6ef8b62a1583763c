"""Normalisation over the last axis."""

from __future__ import annotations

import numpy as np
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.views import BYTES, FLOAT, Numbers, Unsupported, View, type_of


def rms_norm(to: Lowering, node: Tensor) -> None:
    x, *weight = node.inputs
    number, out = type_of(node.dtype), to.view(node)
    eps = node.attrs["eps"] * 4.0 ** -to.power(x)
    works = wide(to, node) and to.why_not("RmsNorm", number) is None
    if works and weight and plain(x, weight[0]):
        root = to.temporary((*x.shape[:-1], 1), FLOAT)
        gamma = to.operand(weight[0], number)
        rows = to.dense(to.operand(x, number))
        to.emit("RmsNorm", rows, gamma, eps, out, root)
        return
    _by_layer_norm(to, node, to.operand(x, number), eps, out)


def _by_layer_norm(to: Lowering, node: Tensor, x: View, eps: float, out: View) -> None:
    """LayerNorm of x and -x beside each other: their mean is zero.

    It sums as precisely as the chip can, where squares of float16 would overflow.
    """
    size, axis = x.shape[-1], len(x.shape) - 1
    both, normed = (to.temporary((*x.shape[:-1], 2 * size), x.type) for _ in range(2))
    signs = to.constant("signs", x.type, np.array([[1.0], [-1.0]]))
    to.emit("Mul", x.spread(axis), signs, both.reshaped(*x.shape[:-1], 2, size))
    shape = Numbers((2 * size,))
    to.emit("LayerNorm", both, shape, None, None, eps, normed, None, None)
    half = normed.part(axis, 0, size)
    if len(node.inputs) == 1:
        to.emit("InplaceCopy", out, half)
    else:
        to.emit("Mul", half, to.operand(node.inputs[1], x.type), out)


def norm(to: Lowering, node: Tensor) -> None:
    x, *others = node.inputs
    if not all(plain(x, t) for t in others):
        msg = "norm with weights of another shape"
        raise Unsupported(msg)
    number = type_of(node.dtype)
    rows = to.dense(to.operand(x, number))
    affine = [to.operand(t, number) for t in others]
    affine += [None] * (2 - len(affine))  # type: ignore[list-item]
    shape, eps = Numbers(x.shape[-1:]), node.attrs["eps"] * 4.0 ** -to.power(x)
    to.emit("LayerNorm", rows, shape, *affine, eps, to.view(node), None, None)


def wide(to: Lowering, node: Tensor) -> bool:
    """Whether the chip's operator takes rows of that length."""
    return node.shape[-1] * BYTES[type_of(node.dtype)] >= to.chip.least_row


def plain(x: Tensor, weight: Tensor) -> bool:
    return weight.shape == x.shape[-1:]
