"""Gated linear units: an activation of one tensor, times another."""

from __future__ import annotations

from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.views import BYTES, View, type_of

_TANH = 1  # of gelu, the approximation by tanh
_UNIT = 64  # bytes that each half is a multiple of, on some chips


def swiglu(to: Lowering, node: Tensor) -> None:
    """silu(gate) up"""
    if both := _both(to, node, "SwiGlu"):
        made = to.result(node, both.type)
        to.emit("SwiGlu", both, 1, made.reshaped(1, made.size))
        to.finish(node, made)
        return
    gate, up = (to.operand(t, type_of(node.dtype)) for t in node.inputs)
    activated = to.temporary(gate.shape, gate.type)
    to.emit("Silu", to.dense(gate), activated)
    to.emit("Mul", activated, up, to.view(node))


def geglu(to: Lowering, node: Tensor) -> None:
    """gelu(gate) up"""
    if both := _both(to, node, "GeGluV3"):
        made = to.result(node, both.type)
        flat, aside = (1, made.size), to.temporary((1, made.size), both.type)
        to.emit("GeGluV3", both, 1, _TANH, True, made.reshaped(*flat), aside)
        to.finish(node, made)
        return
    gate, up = (to.operand(t, type_of(node.dtype)) for t in node.inputs)
    activated = to.temporary(gate.shape, gate.type)
    to.emit("GeluV2", to.dense(gate), _TANH, activated)
    to.emit("Mul", activated, up, to.view(node))


def _both(to: Lowering, node: Tensor, operator: str) -> View | None:
    """Gate and up as one row, where they lie behind each other, as products have made them. Of
    float16 that is for what is only read as float16."""
    gate, up = node.inputs
    if to.divided(gate) or to.divided(up):
        return None
    if to.pairs.get(gate.storage) != (gate.storage, up.storage):
        return None
    one, two = to.known(gate), to.known(up)
    if to.why_not(operator, one.type):
        return None
    beside = one.type == two.type and one.address == two.address and one.end == two.start
    whole = one.dense and two.dense and not one.size * BYTES[one.type] % _UNIT
    exact = one.type == type_of(node.dtype) or node in to.rounded
    return one.reshaped(1, 2 * one.size) if beside and whole and exact else None
