"""Products: convolutions of one point, matmul, linear, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from umbel_ane.drivers.simulator.call import Call, Prepared
from umbel_ane.drivers.simulator.numbers import saturated

Array = np.ndarray


def softmax(x: Array, axis: int) -> Array:
    made: Array = x - x.max(axis=axis, keepdims=True)
    np.exp(made, out=made)
    made /= made.sum(axis=axis, keepdims=True)
    return made


def _conv(call: Call) -> Prepared:
    x, w = call.shape("x"), call.shape("weight")
    groups = int(call.known("groups", 1))
    if len(x) != 4 or len(w) != 4 or x[1] != w[1] * groups or w[0] % groups:
        call.invalid(f"{x} does not go with a weight {w} in {groups} groups")
    ones = (*w[2:], *call.ints("strides", (1, 1)), *call.ints("dilations", (1, 1)))
    if set(ones) != {1} or any(call.ints("pad", (0,) * 4)):
        call.invalid("the simulator convolves single points only: 1x1, strides 1, no padding")
    (b, c, h, s), (out, inner) = x, w[:2]
    shape = (b, out, h, s)
    operands = [call.argument("x"), call.argument("weight")]
    if "bias" in call.statement.args:
        operands.append(call.argument("bias"))
    if not call.profile.runtime_conv and not call.constant("weight"):
        return Prepared((), (shape,), lambda: np.zeros(shape, np.float32))
    turned = (groups, out // groups, inner)

    def run(x: Array, w: Array, bias: Array | None = None) -> Array:
        if groups == 1:
            made: Array = np.matmul(w.reshape(out, c), x.reshape(b, c, h * s)).reshape(shape)
        else:
            parts = x.reshape(b, groups, c // groups, h * s)
            made = np.matmul(w.reshape(turned), parts).reshape(shape)
        return made if bias is None else made + bias.reshape(1, out, 1, 1)

    return Prepared(tuple(operands), (shape,), run)


def _matmul(call: Call) -> Prepared:
    x, y = call.shape("x"), call.shape("y")
    turn_x, turn_y = (bool(call.known(f"transpose_{key}", False)) for key in "xy")
    if len(x) < 2 or len(y) < 2:
        call.invalid(f"{x} and {y} are no matrices")
    m, k = x[-2:][:: -1 if turn_x else 1]
    k2, n = y[-2:][:: -1 if turn_y else 1]
    try:
        shape = (*np.broadcast_shapes(x[:-2], y[:-2]), m, n)
    except ValueError:
        k2 = -1
    if k != k2:
        call.invalid(f"{x} and {y} do not multiply")
    operands = (call.argument("x"), call.argument("y"))
    if k % call.profile.inner_multiple:
        return Prepared((), (shape,), lambda: np.zeros(shape, np.float32))
    limit = saturated(call.profile)

    def run(x: Array, y: Array) -> Array:
        x = x.swapaxes(-1, -2) if turn_x else x
        y = y.swapaxes(-1, -2) if turn_y else y
        return limit(np.matmul(x, y))

    return Prepared(operands, (shape,), run)


def _linear(call: Call) -> Prepared:
    x, w = call.shape("x"), call.shape("weight")
    if len(w) != 2 or x[-1] != w[1]:
        call.invalid(f"{x} does not go with a weight {w}")
    keys = [k for k in ("x", "weight", "bias") if k in call.statement.args]
    limit = saturated(call.profile)

    def run(x: Array, w: Array, bias: Array | float = 0.0) -> Array:
        return limit(x @ w.T + bias)

    operands = tuple(call.argument(key) for key in keys)
    return Prepared(operands, ((*x[:-1], w[0]),), run)


def _attention(call: Call) -> Prepared:
    """Scaled by 1/sqrt(d); the mask is added where the profile heeds it (constraint 6)."""
    q, k, v = (call.shape(key) for key in ("query", "key", "value"))
    if q[-1] != k[-1] or k[-2] != v[-2]:
        call.invalid(f"query {q}, key {k} and value {v} do not go together")
    heeded = call.profile.masked_sdpa and "attn_mask" in call.statement.args
    keys = ("query", "key", "value", *(("attn_mask",) if heeded else ()))
    scale = np.float32(1 / math.sqrt(q[-1]))

    def run(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        scores = np.matmul(q, k.swapaxes(-1, -2)) * scale
        if mask is not None:
            hidden = np.where(mask, np.float32(0), np.float32(-np.inf))
            scores = scores + (hidden if mask.dtype == np.bool_ else mask)
        return np.asarray(np.matmul(softmax(scores, -1), v))

    operands = tuple(call.argument(key) for key in keys)
    return Prepared(operands, ((*q[:-1], v[-1]),), run)


PRODUCTS: Mapping[str, Callable[[Call], Prepared]] = {
    "conv": _conv,
    "matmul": _matmul,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
}
