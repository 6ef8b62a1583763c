"""Identities: operations that change nothing, and chains of moves that one move does.

Only what is the same bit for bit: x + 0 stays, as it makes +0 out of -0; x - 0 and x + -0 go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Graph, Node, rebuilt

NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0, "pow": 1.0}  # as the second operand
COMMUTE = ("add", "mul")
NEVER_NEGATIVE_ZERO = ("exp", "sigmoid", "softmax")  # there +0 may be added


def identities(graph: Graph) -> Graph:
    build = IRBuilder()

    def change(node: Node) -> Node:
        build.name = node.name
        rule = _RULES.get(node.op)
        return node if rule is None else rule(build, node)

    return rebuilt(graph, change)


def _elementwise(build: IRBuilder, node: Node) -> Node:
    x, y = node.inputs
    if _neutral(node.op, x, y) and x.shape == node.shape:
        return x
    if node.op in COMMUTE and _neutral(node.op, y, x) and y.shape == node.shape:
        return y
    return node


def _neutral(op: str, x: Node, y: Node) -> bool:
    """Whether `y` is a constant that leaves `x` as it is."""
    if y.op != "const" or y.size != 1 or y.weight is None:
        return False
    value, wanted = float(np.asarray(y.weight.read()).reshape(())), NEUTRAL[op]
    if value != wanted:
        return False
    same_sign = math.copysign(1, value) == math.copysign(1, wanted)
    return same_sign or (op == "add" and x.op in NEVER_NEGATIVE_ZERO)


def _same(build: IRBuilder, node: Node) -> Node:
    return node.inputs[0]


def _cast(build: IRBuilder, node: Node) -> Node:
    return node.inputs[0] if node.inputs[0].dtype == node.dtype else node


def _neg(build: IRBuilder, node: Node) -> Node:
    x = node.inputs[0]
    return x.inputs[0] if x.op == "neg" else node


def _reshape(build: IRBuilder, node: Node) -> Node:
    x = node.inputs[0]
    if x.op != "reshape" and x.shape != node.shape:
        return node
    return build.reshape(x.inputs[0] if x.op == "reshape" else x, node.shape)


def _transpose(build: IRBuilder, node: Node) -> Node:
    if node.op != "transpose":
        return node
    x, perm = node.inputs[0], node.attrs["perm"]
    if x.op == "transpose":
        perm = tuple(x.attrs["perm"][a] for a in perm)
        return _transpose(build, build.transpose(x.inputs[0], perm))
    return build.reshape(x, node.shape) if _keeps_order(x, perm) else node


def _keeps_order(x: Node, perm: tuple[int, ...]) -> bool:
    """Whether only axes of one value move."""
    order = [a for a in perm if x.shape[a] != 1]
    return order == sorted(order)


def _slice(build: IRBuilder, node: Node) -> Node:
    return node.inputs[0] if node.shape == node.inputs[0].shape else node


def _pad(build: IRBuilder, node: Node) -> Node:
    x = node.inputs[0]
    if node.shape == x.shape:
        return x
    if x.op != "pad":
        return node
    both = [
        [a + b for a, b in zip(node.attrs[side], x.attrs[side], strict=True)]
        for side in ("before", "after")
    ]
    return build.pad(x.inputs[0], *both)


_RULES: Mapping[str, Callable[[IRBuilder, Node], Node]] = {
    **dict.fromkeys(NEUTRAL, _elementwise),
    "identity": _same,
    "cast": _cast,
    "neg": _neg,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "split": _slice,
    "pad": _pad,
}
