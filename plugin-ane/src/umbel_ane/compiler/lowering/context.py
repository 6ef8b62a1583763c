"""What operations are lowered with: the IR's builder, the profile, the ports made so far."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from umbel.graph import Role, Tensor

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Node, Weight
from umbel_ane.compiler.lowering.layout import (
    Atoms,
    Place,
    Refused,
    Value,
    atoms_of,
    flat,
    placed,
    size,
    sizes,
)
from umbel_ane.compiler.lowering.moves import WIDE, arranged, const, exact, padded
from umbel_ane.compiler.ports import Source, Whole
from umbel_ane.profile import Profile

Rule = Callable[..., Value]
WeightOf = Callable[[Tensor], Weight]
FIXED = (Role.WEIGHT, Role.CONST)


@attrs.frozen
class Options:
    """What a user may choose."""

    head: str = "auto"  # one over the profile's channels: "host", "ane" in pieces, or by costs
    attention: str = "auto"  # over a cache: "ane", "host", or what the profile's costs say


@attrs.define(eq=False)
class Context:
    """The state of one lowering."""

    profile: Profile
    options: Options
    weight_of: WeightOf
    b: IRBuilder = attrs.field(factory=IRBuilder)
    sources: dict[str, Source] = attrs.field(factory=dict)
    values: dict[Tensor, Value] = attrs.field(factory=dict)

    # leaves

    def leaf(self, t: Tensor) -> Value:
        """A storage that is there before the split runs."""
        if t.role in FIXED:
            return self._fixed(t)
        core = atoms_of(t.shape)
        return self.port(t.label, Whole, (t,), core, natural(core, state=t.role is Role.STATE))

    def port(
        self,
        label: str,
        source: Callable[..., Source],
        what: tuple[object, ...],
        core: tuple[Atoms, ...],
        place: Place,
        multiple: int = 1,
    ) -> Value:
        """An input of the graph. What the last axis has too much is filled with zeros."""
        w, x, y, z = sizes(place)
        shape = (w, x, y, self.spatial(-(-z // multiple) * multiple))
        made = source(*what, axes=order_of(core, place))
        known = (name for name, s in self.sources.items() if s == made)
        name = next(known, f"{label}.{len(self.sources)}")
        self.sources[name] = made
        return Value(self.b.input(name, shape), core, place)

    def _fixed(self, t: Tensor) -> Value:
        weight = self.weight_of(t) if t.data is None else _values(t.data)
        core = atoms_of(t.shape)
        place: Place = ((), (), (), flat(core))
        return Value(const(self.b, weight, (1, 1, 1, t.size)), core, place)

    # the ends

    def spatial(self, n: int) -> int:
        """The least length that the last axis of a port may have for `n` values."""
        return -(-n // self.profile.spatial_multiple) * self.profile.spatial_multiple

    def finished(self, v: Value) -> tuple[Node, tuple[int, ...]]:
        """The node of an output, and the order in which the core's axes lie in it."""
        order = _whole_axes(v)
        like = natural(v.core)
        ragged = self.spatial(1) > 1 and not _whole_last(v)
        same = flat(v.place) == flat(like) and max(sizes(like)) <= self.profile.max_dim
        if order is None or ragged or same or v.is_const:
            v = arranged(self.b, v, like)
        v = padded(self.b, v, self.profile.spatial_multiple)
        return v.node, order_of(v.core, v.place)

    def repadded(self, v: Value) -> Value:
        return padded(self.b, v, self.profile.spatial_multiple)

    def exact(self, v: Value) -> Value:
        return exact(self.b, v)

    def number(self, values: np.ndarray, core: tuple[Atoms, ...]) -> Value:
        """Values that the lowering makes up, in the shape of `core`."""
        node = self.b.const(np.ascontiguousarray(values).reshape(1, 1, 1, -1))
        return Value(node, core, ((), (), (), flat(core)))


def _values(data: np.ndarray) -> Weight:
    if data.dtype.kind in "iu":
        msg = "integers are the host's"
        raise Refused(msg)
    small = data.astype(np.float16)
    return Weight(("values", small.shape, small.tobytes()), lambda: small)


def natural(core: tuple[Atoms, ...], *, state: bool = False) -> Place:
    """(tokens, features) is [1, features, 1, tokens], and with heads (tokens, heads, size)
    likewise; a state lies as in memory, and so does what has tokens further behind."""
    if state:
        rows = core[:-2] if len(core) > 1 else ()
        return (), flat(rows), flat(core[-2:-1]), core[-1]
    if len(core) == 4 and (not core[1] or (core[2] and core[3])):
        return core[0], core[1], core[2], core[3]
    if len(core) == 3 and size(core[0]) == 2:  # cosines and sines of the tokens
        return placed([(*core[0], *core[2])], core[1])
    if len(core) == 3 and size(flat(core[1:])) > WIDE:  # rows of sequences
        return core[0], core[2], (), core[1]
    if len(core) > 2:
        return placed([flat(core[1:])], core[0])
    return placed([core[-1] if core else ()], core[0] if len(core) == 2 else ())


def order_of(core: tuple[Atoms, ...], place: Place) -> tuple[int, ...]:
    """The axes of the core in the order in which they lie; those of 1 come first."""
    owner = {atom: i for i, atoms in enumerate(core) for atom in atoms}
    ones = [i for i, atoms in enumerate(core) if size(atoms) == 1]
    found = dict.fromkeys(owner[a] for a in flat(place) if a in owner)
    return tuple(dict.fromkeys((*ones, *found)))


def _whole_last(v: Value) -> bool:
    """Whether padding of the last axis is padding of whole axes of the core."""
    mine = set(v.place[3])
    return all(not mine & set(atoms) or set(atoms) <= mine for atoms in v.core)


def _whole_axes(v: Value) -> tuple[int, ...] | None:
    """The order of the core's axes, where none of them lies in pieces."""
    order = order_of(v.core, v.place)
    whole = flat(v.core[i] for i in order)
    lies = tuple(a for a in flat(v.place) if a.size > 1)
    return order if lies == tuple(a for a in whole if a.size > 1) else None
