"""Matrix products: with a weight a 1x1 convolution, else a matmul of two values."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from umbel.graph import Tensor

from umbel_ane import costs
from umbel_ane.compiler.ir import Node
from umbel_ane.compiler.lowering.context import FIXED, Context, Rule
from umbel_ane.compiler.lowering.layout import (
    Atom,
    Atoms,
    Place,
    Refused,
    Value,
    flat,
    fresh,
    runs,
)
from umbel_ane.compiler.lowering.moves import arranged, conformed, exact, reshaped, sliced

MOST_PIECES = 32


def mul_mat(c: Context, node: Tensor, w: Value, x: Value) -> Value:
    weight = node.inputs[0]
    if weight.storage.role in FIXED and len(weight.shape) == 2 and w.is_const:
        return linear(c, w, x)
    return product(c, w, x)


def linear(c: Context, w: Value, x: Value) -> Value:
    """A convolution over whatever axes are not summed: w (out, in), x (..., in)."""
    n_out, n_in = w.shape
    most = c.profile.max_channels
    if n_in > most:
        msg = f"{n_in} input channels, the profile takes at most {most}"
        raise Refused(msg)
    if n_out > most:
        return _in_pieces(c, w, x)
    inner = x.core[-1]
    w = conformed(c.b, fresh(w), 1, inner)
    rest = tuple(a for a in flat(x.place) if a not in inner)
    x = arranged(c.b, x, ((), inner, (), rest))
    w = arranged(c.b, w, (w.core[0], inner, (), ()))
    made = c.b.conv1x1(x.node, w.node)
    return Value(made, (*x.core[:-1], w.core[0]), ((), w.core[0], (), rest))


def _in_pieces(c: Context, w: Value, x: Value) -> Value:
    """More output channels than the profile takes: pieces of one size, on the first axis."""
    n, most = w.shape[0], c.profile.max_channels
    why = f"{n} output channels, the profile takes at most {most}"
    if elsewhere := _left(c, w.shape[0] * w.shape[1]):
        msg = f"{why}; {elsewhere}"
        raise Refused(msg)
    cuts = (k for k in range(2, MOST_PIECES + 1) if n % k == 0 and n // k <= most)
    pieces = next(cuts, 0)
    if not pieces:
        msg = f"{why}, and they cannot be cut into {MOST_PIECES} equal pieces or fewer"
        raise Refused(msg)
    each, rows, result = n // pieces, Atom(n // pieces), None
    last: Atoms = ()
    for i in range(pieces):
        part = linear(c, sliced(c.b, w, 0, i * each, (i + 1) * each), x)
        x_core, last = part.core[:-1], part.place[3]
        before, after = (i, 0, 0, 0), (pieces - 1 - i, 0, 0, 0)
        placed = c.b.pad(part.node, before, after)
        result = placed if result is None else c.b.add(result, placed)
    assert result is not None
    which = Atom(pieces)
    return Value(result, (*x_core, (which, rows)), ((which,), (rows,), (), last))


def _left(c: Context, values: int) -> str | None:
    """Why the host computes it; None: it is cut."""
    if c.options.head == "host":
        return "it is left to the host (option head)"
    here, there = costs.head(c.profile.costs, values)
    if c.options.head == "ane" or here < there:
        return None
    return f"in pieces it takes about {here:.2f} ms, on the host {there:.2f} (option head)"


def product(c: Context, w: Value, x: Value, *, rows: bool = False) -> Value:
    """x w^T for each entry of the leading axes: w (..., out, in), x (..., n, in).

    The result lies with `out` before n, as features before tokens; `rows`: the other way.
    """
    w, x, shared, ratio = _leading(c, fresh(w), x)
    inner, n = x.core[-1], x.core[-2]
    w = conformed(c.b, w, len(w.core) - 1, inner)
    out = w.core[-2]
    order = flat(x.place) if x.node.size >= w.node.size else flat(w.place)
    lead_w: tuple[Atoms, Atoms] = ((), _in_order(shared, order))
    lead_x = lead_w
    if ratio:
        lead_w = _in_order(shared, order), ()
        lead_x = lead_w[0], _in_order(ratio, flat(x.place))
    x, x_turned = _oriented(c, x, lead_x, n, inner)
    w, w_turned = _oriented(c, w, lead_w, out, inner)
    w = exact(c.b, w)
    if rows or not x_turned:  # else columns of padding stay what they are
        x = exact(c.b, x)
    a, b = _multiples(c, x.node, x_turned), _multiples(c, w.node, w_turned)
    core = (*x.core[:-1], out)
    if rows:
        made = c.b.matmul(a, b, transpose_x=x_turned, transpose_y=not w_turned)
        return Value(made, core, (*lead_x, n, out))
    made = c.b.matmul(b, a, transpose_x=w_turned, transpose_y=not x_turned)
    return Value(made, core, (*lead_x, out, n))


def _in_order(atoms: Atoms, order: Atoms) -> Atoms:
    wanted = set(atoms)
    return tuple(a for a in order if a in wanted)


def _leading(c: Context, w: Value, x: Value) -> tuple[Value, Value, Atoms, Atoms]:
    """The same atoms for what w and x share of their leading axes, and those that x alone
    has: batch i of x meets batch i // ratio of w."""
    shared: Atoms = ()
    ratio: Atoms = ()
    missing = len(x.core) - len(w.core)
    w = attrs.evolve(w, core=((),) * missing + w.core)
    for axis in range(len(x.core) - 2):
        n, m = w.shape[axis], x.shape[axis]
        if n == 1:
            ratio += x.core[axis]
        elif n == m:
            w = conformed(c.b, w, axis, x.core[axis])
            shared += x.core[axis]
        else:
            shape = (*x.shape[:axis], n, m // n, *x.shape[axis + 1 :])
            apart = reshaped(c.b, x, shape)
            of_w, of_x = apart.core[axis : axis + 2]
            core = (*apart.core[:axis], of_w + of_x, *apart.core[axis + 2 :])
            x = attrs.evolve(apart, core=core)
            w = conformed(c.b, w, axis, of_w)
            shared, ratio = shared + of_w, ratio + of_x
    return w, x, shared, ratio


def _oriented(
    c: Context, v: Value, lead: tuple[Atoms, Atoms], rows: Atoms, inner: Atoms
) -> tuple[Value, bool]:
    """[..., inner, rows] and True, or [..., rows, inner] and False: what moves less."""
    turned: Place = (*lead, inner, rows)
    plain: Place = (*lead, rows, inner)
    order = flat(v.place)
    if v.place == plain:
        return v, False
    free = len(runs(order, flat(turned))) < 2 or v.is_const
    if not free and len(runs(order, flat(plain))) < 2:
        return arranged(c.b, v, plain), False
    return arranged(c.b, v, turned), True


def _multiples(c: Context, node: Node, turned: bool) -> Node:
    """With zeros up to the multiple that the profile wants of the summed axis."""
    axis = 2 if turned else 3
    more = -node.shape[axis] % c.profile.inner_multiple
    after = [more if a == axis else 0 for a in range(4)]
    return c.b.pad(node, (0, 0, 0, 0), after)


OPS: Mapping[str, Rule] = {"mul_mat": mul_mat}
