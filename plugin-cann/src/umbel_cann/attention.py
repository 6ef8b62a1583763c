"""Soft maximum, and attention from two products and one of it."""

from __future__ import annotations

from umbel.graph import MASKED, Role, Tensor

from umbel_cann import flash
from umbel_cann.lowering import Lowering
from umbel_cann.products import batches, factors
from umbel_cann.views import FLOAT, FLOAT16, ONE, Scalar, Unsupported, View, type_of

# In place of minus infinity, and what makes of it alone a number far below zero.
_LEAST = {FLOAT: (-3.3e38, 3.2e38), FLOAT16: (-65504.0, 65000.0)}


def soft_max(to: Lowering, node: Tensor) -> None:
    x, *mask = node.inputs
    if node.attrs.get("max_bias"):
        msg = "soft_max with the slopes of ALiBi"
        raise Unsupported(msg)
    number = type_of(node.dtype)
    scores = to.operand(x, number)
    if mask:
        _weights(to, scores, mask, to.view(node))
        return
    # a row of minus infinities is zero, too
    (least, shift), scores = _LEAST[number], to.dense(scores)
    finite, weights, shifted, seen = (to.temporary(x.shape, number) for _ in range(4))
    to.emit("Clamp", scores, Scalar(least), Scalar(-least), finite)
    to.emit("Softmax", finite, len(x.shape) - 1, weights)
    to.emit("Adds", scores, Scalar(shift), ONE, shifted)
    to.emit("Sigmoid", shifted, seen)
    to.emit("Mul", weights, seen, to.view(node))


def _weights(to: Lowering, scores: View, mask: list[Tensor], out: View) -> None:
    """A row that is all masked is zero: so what is masked is multiplied by zero at the end."""
    last = len(scores.shape) - 1
    if not mask:
        to.emit("Softmax", scores, last, out)
        return
    masked, weights = (to.temporary(scores.shape, scores.type) for _ in range(2))
    to.emit("Add", scores, to.operand(mask[0], scores.type), ONE, masked)
    to.emit("Softmax", masked, last, weights)
    to.emit("Mul", weights, _seen(to, mask[0], scores.type), out)


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


def flash_attn_ext(to: Lowering, node: Tensor) -> None:
    """Scaling q keeps products within float16 where those of q and k are not.

    Scores are not clamped to what a mask outweighs, as the decomposition does it: a 310B has no
    operator for that, and in no model do they come near.
    """
    if to.slots and flash.whole(to, node):  # before there are any, the other form is asked for
        flash.attend(to, node)
        return
    q, k, v, *mask = node.inputs
    more = [name for name in ("max_bias", "logit_softcap") if node.attrs.get(name)]
    if more or len(mask) > 1:
        msg = f"flash_attn_ext with {', '.join(more) or 'sinks'}"
        raise Unsupported(msg)
    number = type_of(node.dtype)
    given = to.operand(q, number)
    scaled = to.temporary(q.shape, number)
    to.emit("Muls", given, Scalar(node.attrs["scale"]), scaled)
    scores, weights = (to.temporary((*q.shape[:3], k.shape[2]), number) for _ in range(2))
    batches(to, scaled, factors(to, to.operand(k, number)), scores)
    _weights(to, scores, mask, weights)
    out = to.view(node)
    turned = out.permuted(0, 2, 1, 3)  # (S, H, T, hv)
    sums = turned if turned.dense else to.temporary(turned.shape, number)
    batches(to, weights, factors(to, to.operand(v, number).turned()), sums)
    if sums is not turned:
        to.emit("InplaceCopy", out, sums.permuted(0, 2, 1, 3))
