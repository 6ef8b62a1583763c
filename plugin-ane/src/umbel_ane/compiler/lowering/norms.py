"""rms_norm and norm over the last axis, and its sum, in float16.

A row is divided by its largest magnitude first (in two steps, so that neither the factor nor
the products leave float16's normal numbers), times a power of two: then squares neither
overflow, nor does any partial sum of them, nor do small ones vanish; eps shrinks accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
from umbel.graph import Tensor

from umbel_ane.compiler.ir import Node
from umbel_ane.compiler.lowering.context import Context, Rule
from umbel_ane.compiler.lowering.elementwise import binary, times
from umbel_ane.compiler.lowering.layout import Value, only
from umbel_ane.compiler.lowering.moves import alone

_FLOOR = 1e-4  # of the level: below it rows are no longer made larger
_EPS = 1e-12  # at least: a row of zeros stays one
_SUM = 32768.0  # what sums of squares stay below


def rms_norm(c: Context, node: Tensor, x: Value, weight: Value | None = None) -> Value:
    y = _normed(c, x, node.attrs["eps"], centred=False)
    return y if weight is None else binary(c, "mul", y, weight)


def norm(c: Context, node: Tensor, x: Value, *weight_and_bias: Value) -> Value:
    y = _normed(c, x, node.attrs["eps"], centred=True)
    for op, t in zip(("mul", "add"), weight_and_bias, strict=False):
        y = binary(c, op, y, t)
    return y


def _normed(c: Context, v: Value, eps: float, *, centred: bool) -> Value:
    v, axis = alone(c.b, v, v.core[-1])
    b, n, x, eps = c.b, v.shape[-1], v.node, max(eps, _EPS)
    floor = max(math.sqrt(eps), _FLOOR)
    # every value is `top` at most, or twice that when the mean is gone
    top = 2.0 ** min(4, math.floor(math.log2(_SUM / n / (4 if centred else 1)) / 2))
    level = _level(c, x, axis, floor, top)
    root = b.pow(level, -0.5)
    x = b.mul(b.mul(x, root), root)
    if centred:
        x = b.sub(x, b.reduce("reduce_mean", x, axis))
    mean = b.reduce("reduce_mean", b.mul(x, x), axis)
    small = b.mul(times(c, root, math.sqrt(eps)), root)  # sqrt(eps) / level
    inverse = b.pow(b.add(mean, b.mul(small, small)), -0.5)
    return attrs.evolve(v, node=b.mul(x, inverse))


def _level(c: Context, x: Node, axis: int, floor: float, top: float) -> Node:
    """(the largest magnitude along the axis + floor) / top. Parts are compared, a half at
    most: their difference is within float16's range."""
    b, part = c.b, max(top, 2.0)
    high = b.mul(b.reduce("reduce_max", x, axis), 1 / part)
    low = b.reduce("reduce_max", b.mul(x, -1 / part), axis)
    largest = b.add(high, b.unary("relu", b.sub(low, high)))
    return b.add(times(c, largest, part / top), floor / top)


def sum_rows(c: Context, node: Tensor, x: Value) -> Value:
    return reduced(c, "reduce_sum", x)


def reduced(c: Context, op: str, v: Value) -> Value:
    """Over the last axis of the core, which stays as one of 1."""
    v, axis = alone(c.b, v, v.core[-1])
    core = (*v.core[:-1], ())
    kept = only(v.place, [a for group in core for a in group])
    return Value(c.b.reduce(op, v.node, axis), core, kept)


OPS: Mapping[str, Rule] = {"rms_norm": rms_norm, "norm": norm, "sum_rows": sum_rows}
