"""Soft maximum, and attention from two products and one of it."""

from __future__ import annotations

import contextlib

import numpy as np
from umbel.graph import MASKED, Role, Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops import flash
from umbel_cann.ops.elementwise import tanh_of
from umbel_cann.ops.products import batches, factors
from umbel_cann.views import FLOAT, FLOAT16, ONE, Scalar, Unsupported, View, Views, type_of

_LEAST = {FLOAT: -3.3e38, FLOAT16: -65504.0}  # in place of minus infinity


def soft_max(to: Lowering, node: Tensor) -> None:
    x, *mask = node.inputs
    number = type_of(node.dtype)
    scores, out = to.operand(x, number), to.view(node)
    if mask:
        _weights(to, scores, mask, out, node.attrs.get("max_bias", 0.0))
        return
    # a row of minus infinities is zero, too: the least number beside it takes all
    last, shape = len(scores.shape) - 1, (*scores.shape[:-1], 1)
    least = to.constant(("least", shape), number, np.full(shape, _LEAST[number]))
    if to.why_not("Cat", number) is None:  # copies to where there are gaps are made anew
        wide = to.temporary((*shape[:-1], scores.shape[-1] + 1), number)
        to.emit("Cat", Views((to.dense(scores), least)), last, wide)
    else:
        wide = _beside(to, scores, least)
        to.emit("InplaceCopy", wide.part(last, 0, scores.shape[-1]), scores)
    weights = to.temporary(wide.shape, number)
    to.emit("Softmax", wide, last, weights)
    to.emit("InplaceCopy", out, weights.part(last, 0, scores.shape[-1]))


def _beside(to: Lowering, scores: View, column: View) -> View:
    """Room for scores, and after them a column that broadcasts."""
    last, n = len(scores.shape) - 1, scores.shape[-1]
    wide = to.temporary((*scores.shape[:-1], n + 1), scores.type)
    to.emit("InplaceCopy", wide.part(last, n, n + 1), column)
    return wide


def _weights(
    to: Lowering, scores: View, others: list[Tensor], out: View, max_bias: float = 0.0
) -> None:
    """Of scores with a mask and sinks, if any.

    A row that is all masked is zero: so what is masked is multiplied by zero at the end. A sink
    is one more score of its head, whose weight is dropped.
    """
    last, n, number = len(scores.shape) - 1, scores.shape[-1], scores.type
    if not others:
        to.emit("Softmax", scores, last, out)
        return
    mask, *sinks = others
    if sinks:
        column = to.dense(to.operand(sinks[0], number)).reshaped(1, scores.shape[1], 1, 1)
        masked = _beside(to, scores, column)
    else:
        masked = to.temporary(scores.shape, number)
    seen = _seen(to, mask, number)
    bias = to.operand(mask, number)
    if max_bias:
        bias = _sloped(to, mask, seen, scores, max_bias)
    to.emit("Add", scores, bias, ONE, masked.part(last, 0, n))
    weights = to.temporary(masked.shape, number)
    to.emit("Softmax", masked, last, weights)
    to.emit("Mul", weights.part(last, 0, n), seen, out)


def _seen(to: Lowering, mask: Tensor, number: int) -> View:
    """One where a mask shows, zero where it hides: the sigmoid of what is far from zero."""

    def fill(seen: View) -> None:
        shifted = to.temporary(mask.shape, number)
        hidden = to.dense(to.operand(mask, number))
        to.emit("Adds", hidden, Scalar(-MASKED / 2 - 100), ONE, shifted)
        to.emit("Sigmoid", shifted, seen)

    if mask.storage.role is Role.INPUT:  # the same for all layers
        return to.once((mask, number), mask.shape, number, fill)
    made = to.temporary(mask.shape, number)
    fill(made)
    return made


def _sloped(to: Lowering, mask: Tensor, seen: View, scores: View, max_bias: float) -> View:
    """A mask times the slopes of heads (ALiBi); what it hides stays far below zero."""
    heads, number = scores.shape[-3], scores.type
    slopes = to.constant(("slopes", heads, max_bias), number, _slopes(heads, max_bias))
    shape = np.broadcast_shapes(mask.shape, slopes.shape)

    def fill(bias: View) -> None:
        far, shown = (to.temporary(mask.shape, number) for _ in range(2))
        sloped = to.temporary(shape, number)
        to.emit("Muls", seen, Scalar(-MASKED), shown)
        to.emit("Adds", shown, Scalar(MASKED), ONE, far)
        to.emit("Mul", to.operand(mask, number), seen, shown)
        to.emit("Mul", shown, slopes, sloped)
        to.emit("Add", sloped, far, ONE, bias)

    if mask.storage.role is Role.INPUT:
        return to.once((mask, heads, max_bias, number), shape, number, fill)
    made = to.temporary(shape, number)
    fill(made)
    return made


def _slopes(heads: int, max_bias: float) -> np.ndarray:
    """(heads, 1, 1); past a power of two, the odd steps between."""
    whole = 1 << (heads.bit_length() - 1)
    steps = [*range(1, whole + 1), *(h + 0.5 for h in range(heads - whole))]
    return np.exp2(-max_bias / whole * np.array(steps))[:, None, None]


def flash_attn_ext(to: Lowering, node: Tensor) -> None:
    """Scaling q keeps products within float16 where those of q and k are not.

    Scores are not clamped to what a mask outweighs, as the decomposition does it: a 310B has no
    operator for that, and in no model do they come near.
    """
    if node in to.blocks:  # there are no rows for the other form
        flash.attend(to, node)
        return
    if to.slots and flash.whole(to, node):  # before there are any, the other form is asked for
        with contextlib.suppress(Unsupported), to.attempt():
            flash.attend(to, node)
            return
    q, k, v, *others = node.inputs
    number, cap = type_of(node.dtype), node.attrs.get("logit_softcap", 0.0)
    given = to.operand(q, number)
    scaled = to.temporary(q.shape, number)
    to.emit("Muls", given, Scalar(node.attrs["scale"] / (cap or 1.0)), scaled)
    scores, weights = (to.temporary((*q.shape[:3], k.shape[2]), number) for _ in range(2))
    batches(to, scaled, factors(to, to.operand(k, number)), scores)
    if cap:
        tanh_of(to, scores, weights)
        to.emit("Muls", weights, Scalar(cap), scores)
    _weights(to, scores, others, weights, node.attrs.get("max_bias", 0.0))
    out = to.view(node)
    turned = out.permuted(0, 2, 1, 3)  # (S, H, T, hv)
    sums = turned if turned.dense else to.temporary(turned.shape, number)
    batches(to, weights, factors(to, to.operand(v, number).turned()), sums)
    if sums is not turned:
        to.emit("InplaceCopy", out, sums.permuted(0, 2, 1, 3))
