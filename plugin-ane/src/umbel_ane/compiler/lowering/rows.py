"""Rows by number: the host gathers those of weights and states into a port; those of values
are picked by a product. And what else moves rows."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from umbel.gguf.types import F16, I32
from umbel.graph import Role, Tensor

from umbel_ane.compiler.ir import Weight
from umbel_ane.compiler.lowering.context import FIXED, Context, Rule
from umbel_ane.compiler.lowering.elementwise import times, within
from umbel_ane.compiler.lowering.layout import Atoms, Place, Refused, Value, atoms_of, flat
from umbel_ane.compiler.lowering.moves import arranged, const, exact, joined, reshaped
from umbel_ane.compiler.ports import OneHot, Rows
from umbel_ane.profile import Costs

PAST = 16  # of a cache: the zeros behind the past are where a step's own rows are added


def get_rows(c: Context, node: Tensor) -> Value:
    a, ids = node.inputs
    if len(a.shape) != 2:
        msg = "it picks rows of one matrix, not of a batch of them"
        raise Refused(msg)
    if ids.storage.role is Role.CONST:
        return _known(c, node)
    if ids.storage.role is not Role.INPUT:
        msg = "the rows are chosen by the device itself: only the host can do that"
        raise Refused(msg)
    if a.storage.role is Role.NODE or a.storage.role is Role.INPUT:
        return _picked(c, node)
    if a.storage is not a:
        msg = "the host gathers rows of a whole weight or state"
        raise Refused(msg)
    if a.role is Role.STATE:
        _check_state(c, a, node)
    core = atoms_of(node.shape)
    multiple = PAST if a.role is Role.STATE else 1
    return c.port(a.label, Rows, (a, ids), core, _gathered(core), multiple)


def _gathered(core: tuple[Atoms, ...]) -> Place:
    """Columns are channels, the last axis of the numbers is the last one."""
    *first, last, columns = ((), *core)
    return flat(first), columns, (), last


def _check_state(c: Context, state: Tensor, node: Tensor) -> None:
    if state.dtype is not F16:
        msg = f"rows of a state are taken as f16, this one is kept as {state.dtype}"
        raise Refused(msg)
    if c.options.attention == "host":
        msg = "attention over a cache is left to the host (option attention)"
        raise Refused(msg)
    if c.options.attention == "auto" and (why := _dearer(c.profile.costs, node.nbytes)):
        raise Refused(why)


def _dearer(costs: Costs, nbytes: int) -> str | None:
    """Why one layer's decode attention is better left to the host.

    The host reads keys and values once, either to attend or to hand them over; the device reads
    them again, while a stay on the host costs the layer one dispatch more. `nbytes` is of keys.
    """
    if not costs.weight_gbps:
        return None
    here, there = 2 * nbytes / costs.weight_gbps * 1e-6, costs.dispatch_ms
    if here <= there:
        return None
    return (
        f"attention over so long a cache costs about {here:.2f} ms a layer here, "
        f"{there:.2f} ms on the host (option attention)"
    )


def _known(c: Context, node: Tensor) -> Value:
    """Rows of a weight whose numbers are part of the graph."""
    a, ids = node.inputs
    if a.storage.role not in FIXED or a.storage is not a or ids.data is None:
        msg = "rows by fixed numbers are taken of a whole weight"
        raise Refused(msg)
    weight, chosen, shape = c.weight_of(a), ids.data, a.shape
    key = (weight.key, "rows", chosen.shape, chosen.tobytes())
    read = Weight(key, lambda: weight.read().reshape(shape)[chosen])
    core = atoms_of(node.shape)
    return Value(const(c.b, read, (1, 1, 1, node.size)), core, ((), (), (), flat(core)))


def _picked(c: Context, node: Tensor) -> Value:
    """Rows of a value: a product with ones where they are wanted."""
    a, ids = node.inputs
    x, n = c.values[a], a.shape[0]
    if n == 1 and ids.size == 1:  # it can only be this one
        return reshaped(c.b, x, node.shape)
    core = atoms_of((ids.size, n))
    places: Place = ((), (), core[1], core[0])
    ones = c.port("one-hot", OneHot, (ids, n), core, places)
    x = exact(c.b, arranged(c.b, x, ((), (), x.core[1], x.core[0])))
    x = within(c, x)  # no infinity may reach other rows
    part = 0.5 if c.profile.saturates_at else 1.0  # products reach half of float16's range
    product = c.b.matmul(times(c, x.node, part), ones.node)
    wanted: Place = ((), (), x.core[1], core[0])
    made = Value(times(c, product, 1 / part), (core[0], x.core[1]), wanted)
    return reshaped(c.b, made, node.shape)


def concat(c: Context, node: Tensor, a: Value, b: Value) -> Value:
    if node.dtype is I32:
        msg = "integers are the host's"
        raise Refused(msg)
    return joined(c.b, (a, b), node.attrs["axis"])


def as_it_is(c: Context, node: Tensor, x: Value) -> Value:
    return attrs.evolve(x)


OPS: Mapping[str, Rule] = {"concat": concat, "cont": as_it_is}
