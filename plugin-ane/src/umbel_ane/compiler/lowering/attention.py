"""soft_max and flash_attn_ext, safe in float16 up to scores that no trained model has.

Scores are kept divided by `UNIT`, so that they overflow at half a million (a million where
products do not saturate); beyond that they are infinite, which is told. What is left after the
largest of a row has been taken away is multiplied again (where it overflows to minus infinity
its weight is zero anyway). A mask of MASKED / 2 or less hides: it lowers a score by more than
any other can be below it, and rows that are hidden as a whole are multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from umbel.graph import MASKED, Tensor
from umbel.ops.attention import Attention

from umbel_ane.compiler.lowering.context import Context, Rule
from umbel_ane.compiler.lowering.elementwise import binary, greater, times, within
from umbel_ane.compiler.lowering.layout import Refused, Value, permuted
from umbel_ane.compiler.lowering.moves import alone
from umbel_ane.compiler.lowering.norms import reduced
from umbel_ane.compiler.lowering.products import product

UNIT = 16.0  # of scores of attention
PLAIN = 4.0  # of those that soft_max is given
HIDDEN = -30000.0  # added to what is hidden, in these units


def soft_max(c: Context, node: Tensor, x: Value, mask: Value | None = None) -> Value:
    if mask is None:
        return _unmasked(c, x)
    smaller = attrs.evolve(x, node=c.b.mul(x.node, 1 / PLAIN))
    weights, rows = _masked(c, smaller, mask, PLAIN, node.attrs.get("max_bias", 0.0))
    return weights if rows is None else binary(c, "mul", weights, rows)


def _unmasked(c: Context, x: Value) -> Value:
    """Step by step, since a row may be minus infinity as a whole: its weights are zero."""
    b = c.b
    highest = within(c, reduced(c, "reduce_max", x))
    left = binary(c, "sub", x, highest)
    e = attrs.evolve(left, node=b.unary("exp", left.node))
    total = reduced(c, "reduce_sum", e)
    share = b.pow(greater(c, total.node, 0.5), -1.0)  # the total is 1 at least, or 0
    return binary(c, "mul", e, attrs.evolve(total, node=share))


def flash_attn_ext(c: Context, node: Tensor, *inputs: Value) -> Value:
    """(S, H, T, hd), k (S, Hkv, L, hd), v (S, Hkv, L, hv): (S, T, H, hv)"""
    if len(inputs) == 5:
        msg = "attention with sinks is computed in parts"
        raise Refused(msg)
    how, (q, k, v, *mask) = Attention(**node.attrs), inputs
    unit = how.logit_softcap or UNIT
    q = attrs.evolve(q, node=times(c, q.node, how.scale / unit))
    scores = product(c, k, q, rows=True)
    if how.logit_softcap:
        scores = attrs.evolve(scores, node=c.b.unary("tanh", scores.node))
    weights, rows = _masked(c, scores, mask[0] if mask else None, unit, how.max_bias)
    out = permuted(product(c, permuted(v, (0, 1, 3, 2)), weights), (0, 2, 1, 3))
    if rows is not None:
        out = binary(c, "mul", out, permuted(rows, (0, 2, 1, 3)))
    return c.repadded(out)


def _masked(
    c: Context, scores: Value, mask: Value | None, unit: float, bias: float
) -> tuple[Value, Value | None]:
    """The weights of scores (..., L) that are in `unit`s, and which rows count."""
    rows = None
    if mask is not None:
        added, rows = _prepared(c, mask, unit, scores, bias)
        scores = binary(c, "add", scores, added)
    scores, axis = alone(c.b, scores, scores.core[-1])
    highest = c.b.reduce("reduce_max", scores.node, axis)
    left = times(c, c.b.sub(scores.node, highest), unit)
    return attrs.evolve(scores, node=c.b.softmax(left, axis)), rows


def _prepared(
    c: Context, mask: Value, unit: float, scores: Value, bias: float
) -> tuple[Value, Value]:
    """What is added, and which rows see anything: the same for all layers."""
    b, x = c.b, c.exact(mask)
    least = b.unary("relu", b.add(x.node, -MASKED / 2))  # 0: hidden; float16's step there is 8
    seen = b.sub(b.const(1.0), b.unary("relu", b.sub(b.const(1.0), least)))
    hidden = attrs.evolve(x, node=b.mul(b.sub(seen, 1.0), -HIDDEN))
    added = attrs.evolve(x, node=times(c, x.node, 1 / unit))
    if bias:
        added = binary(c, "mul", _spread(c, added, scores), _slopes(c, scores, bias))
    rows = reduced(c, "reduce_max", attrs.evolve(x, node=seen))
    return binary(c, "add", added, hidden), rows


def _spread(c: Context, mask: Value, scores: Value) -> Value:
    """The mask with an axis for the heads: as one value for each, which starts at zero."""
    zeros = attrs.evolve(scores, node=c.b.mul(scores.node, 0.0))
    return binary(c, "add", zeros, mask)


def _slopes(c: Context, scores: Value, max_bias: float) -> Value:
    """What each head multiplies the mask by; past a power of two, the odd steps between."""
    heads = scores.shape[-3]
    whole = 1 << (max(heads, 1).bit_length() - 1)
    steps = [*range(1, whole + 1), *(h + 0.5 for h in range(heads - whole))]
    values = np.exp2(-max_bias / whole * np.array(steps[:heads], np.float32))
    return c.number(values, (scores.core[-3], (), ()))


OPS: Mapping[str, Rule] = {"soft_max": soft_max, "flash_attn_ext": flash_attn_ext}
