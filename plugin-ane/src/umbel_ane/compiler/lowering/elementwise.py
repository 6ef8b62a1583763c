"""Arithmetic, activation functions, gated linear units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
from umbel.graph import Tensor

from umbel_ane.compiler.ir import Node, Weight
from umbel_ane.compiler.lowering.context import Context, Rule
from umbel_ane.compiler.lowering.layout import (
    Atom,
    Atoms,
    Place,
    Refused,
    Value,
    flat,
    fresh,
    only,
    placed,
    sizes,
)
from umbel_ane.compiler.lowering.moves import arranged, conformed, const, exact

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702
_LEAST, _MOST = 2.0**-14, 65504.0  # float16's normal numbers


def binary(c: Context, op: str, x: Value, y: Value) -> Value:
    """x op y, where y broadcasts to x as in NumPy."""
    x, y = paired(c, x, y)
    node = getattr(c.b, op)(x.node, y.node)
    return Value(node, x.core, x.place)


def paired(c: Context, x: Value, y: Value) -> tuple[Value, Value]:
    """Both laid out so that their nodes broadcast."""
    missing = len(x.core) - len(y.core)
    y = attrs.evolve(y, core=((),) * missing + y.core)
    if any(b and a != b for a, b in zip(x.core, y.core, strict=True)):
        y = fresh(y)
    for axis, atoms in enumerate(x.core):
        if y.core[axis]:
            y = conformed(c.b, y, axis, atoms)
    covers = set(flat(y.core)) == set(flat(x.core))
    if covers and (x.is_const and not y.is_const):
        return arranged(c.b, x, y.place), y
    x = _apart(c, x, y)
    y = arranged(c.b, y, only(x.place, flat(y.core)))
    if y.place[3] != x.place[3]:
        y = exact(c.b, y)
    widths = x.node.shape[3], y.node.shape[3]
    if widths[0] != widths[1] and (x.place[3] or 1 not in widths):
        x, y = exact(c.b, x), exact(c.b, y)
    return x, y


def _apart(c: Context, x: Value, y: Value) -> Value:
    """x with no axis that holds both what y has and what it has not."""
    shared = set(flat(y.core))
    groups = [run for group in x.place for run in _runs(group, shared)]
    if groups == [g for g in x.place if g]:
        return x
    last: Atoms = x.place[3]
    if len(_runs(last, shared)) > 1:
        x, last = exact(c.b, x), ()
    else:
        groups = groups[: len(groups) - bool(last)]
    room = 3 if last or x.padded else 4
    while len(groups) > room:
        pairs = itertools.pairwise(groups)
        kinds = [(p[0] in shared) == (q[0] in shared) for p, q in pairs]
        if True not in kinds:
            return _sorted(c, x, shared)
        i = kinds.index(True)
        groups[i : i + 2] = [groups[i] + groups[i + 1]]
    place = placed(groups[:3], last) if len(groups) < 4 else placed(groups[:3], groups[3])
    return arranged(c.b, x, place)


def _runs(group: Atoms, shared: set[Atom]) -> list[Atoms]:
    found: list[Atoms] = []
    for atom in group:
        if found and (found[-1][-1] in shared) == (atom in shared):
            found[-1] += (atom,)
        else:
            found.append((atom,))
    return found


def _sorted(c: Context, x: Value, shared: set[Atom]) -> Value:
    order = flat(x.place)
    mine = tuple(a for a in order if a in shared)
    place: Place = ((), tuple(a for a in order if a not in shared), (), mine)
    return arranged(c.b, exact(c.b, x), place)


def divided(c: Context, x: Value, y: Value) -> Value:
    """x y^-1: two roundings. A constant is turned when it is read. No padding is divided by."""
    return binary(c, "mul", x, reciprocal(c, exact(c.b, y)))


def reciprocal(c: Context, y: Value) -> Value:
    weight = y.node.weight
    if weight is None:
        return attrs.evolve(y, node=c.b.pow(y.node, -1.0))

    def read() -> np.ndarray:
        with np.errstate(divide="ignore"):
            return (1 / weight.read().astype(np.float32)).astype(np.float16)

    node = const(c.b, Weight((weight.key, "inverse"), read), sizes(y.place), y.node.dtype)
    return attrs.evolve(y, node=node)


def times(c: Context, x: Node, s: float) -> Node:
    """x s; a factor that float16 has no normal number for is taken in steps."""
    if s == 1.0:
        return x
    if s and not _LEAST <= abs(s) <= _MOST:
        root = math.sqrt(abs(s))
        return times(c, times(c, x, root), math.copysign(root, s))
    return c.b.mul(x, s)


def plus(c: Context, x: Node, s: float) -> Node:
    if abs(s) > _MOST:
        msg = f"{s:g} is beyond float16's range"
        raise Refused(msg)
    return c.b.add(x, s) if s else x


def greater(c: Context, x: Node, least: float) -> Node:
    """max(x, least) of what is finite: rounded where it is x < least, else x as it is."""
    return c.b.add(x, c.b.unary("relu", c.b.add(c.b.mul(x, -1.0), least)))


def scale(c: Context, node: Tensor, x: Value) -> Value:
    made = times(c, x.node, node.attrs["s"])
    return attrs.evolve(x, node=plus(c, made, node.attrs.get("b", 0.0)))


def clamp(c: Context, node: Tensor, x: Value) -> Value:
    return within(c, x, node.attrs["min"], node.attrs["max"])


def within(c: Context, x: Value, low: float = -_MOST, high: float = _MOST) -> Value:
    """The larger of two that are stacked, twice: exact, and infinities come back."""
    if low > _MOST or high < -_MOST:
        msg = "the limits are beyond float16's range"
        raise Refused(msg)
    room = next((i for i in (2, 0, 1) if x.node.shape[i] == 1), None)
    if room is None:
        x = arranged(c.b, x, placed([flat(x.place[:3])], x.place[3]))
        room = 2
    made = _larger(c, x.node, low, room)
    made = c.b.mul(_larger(c, c.b.mul(made, -1.0), -high, room), -1.0)
    return attrs.evolve(x, node=made)


def _larger(c: Context, x: Node, least: float, axis: int) -> Node:
    after = [int(a == axis) for a in range(4)]
    other = np.zeros([1 + n for n in after], np.float16)
    other.reshape(2)[1] = min(max(least, -_MOST), _MOST)
    stacked = c.b.add(c.b.pad(x, (0, 0, 0, 0), after), c.b.const(other))
    return c.b.reduce("reduce_max", stacked, axis)


def _sqr(c: Context, x: Node) -> Node:
    return c.b.mul(x, x)


def _silu(c: Context, x: Node) -> Node:
    return c.b.mul(x, c.b.unary("sigmoid", x))


def _quick(c: Context, x: Node) -> Node:
    return c.b.mul(x, c.b.unary("sigmoid", c.b.mul(x, _QUICK)))


def _gelu(c: Context, x: Node) -> Node:
    """By tanh, which the chip has more exactly than sigmoid; beyond 255 the square is infinite
    and tanh is +-1, which is right."""
    b = c.b
    inner = b.add(b.mul(b.mul(x, x), _GELU * _CUBIC), _GELU)
    return b.mul(b.mul(x, 0.5), b.add(b.unary("tanh", b.mul(inner, x)), 1.0))


def _plain(op: str) -> Callable[[Context, Node], Node]:
    return lambda c, x: c.b.unary(op, x)


UNARY: dict[str, Callable[[Context, Node], Node]] = {
    **{name: _plain(name) for name in ("exp", "tanh", "relu", "sigmoid", "sqrt")},
    "neg": lambda c, x: c.b.mul(x, -1.0),
    "sqr": _sqr,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_quick": _quick,
}
_GLU = {"reglu": "relu", "swiglu": "silu", "geglu": "gelu", "geglu_quick": "gelu_quick"}


def unary(c: Context, node: Tensor, x: Value) -> Value:
    assert node.op is not None
    return attrs.evolve(x, node=UNARY[node.op.name](c, x.node))


def glu(c: Context, node: Tensor, gate: Value, up: Value) -> Value:
    assert node.op is not None
    active = attrs.evolve(gate, node=UNARY[_GLU[node.op.name]](c, gate.node))
    return binary(c, "mul", active, up)


def arithmetic(c: Context, node: Tensor, x: Value, y: Value) -> Value:
    assert node.op is not None
    if node.op.name == "div":
        return divided(c, x, y)
    return binary(c, node.op.name, x, y)


OPS: Mapping[str, Rule] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), arithmetic),
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(_GLU, glu),
    "scale": scale,
    "clamp": clamp,
}
