"""Moves values: another place for their atoms, parts of them, several behind each other.

What needs no data to move becomes a reshape or nothing at all; constants are arranged when
they are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Node, Weight
from umbel_ane.compiler.lowering.layout import (
    Atom,
    Atoms,
    Place,
    Refused,
    Value,
    consecutive,
    flat,
    fresh,
    placed,
    runs,
    size,
    sizes,
    substituted,
)

WIDE = 16384  # what an axis of a chip takes at least


def arranged(b: IRBuilder, v: Value, place: Place) -> Value:
    """The value with its atoms at `place`. Padding stays where the last axis does."""
    if v.place == place:
        return v
    if v.is_const:
        return _const_arranged(b, v, place)
    if v.padded and not _keeps_padding(v, place):
        v = exact(b, v)
    tail = v.node.shape[3] if v.padded else 0
    last = len(v.place) - 1 if tail else len(v.place)
    source, target = flat(v.place[:last]), flat(place[:last])
    node = _turned(b, v.node, source, target, tail)
    shape = sizes(place)
    return Value(_reshaped(b, node, (*shape[:3], tail or shape[3])), v.core, place)


def _keeps_padding(v: Value, place: Place) -> bool:
    same = place[3] == v.place[3]
    return same and len(runs(flat(v.place[:3]), flat(place[:3]))) <= 3


def _turned(b: IRBuilder, node: Node, source: Atoms, target: Atoms, tail: int) -> Node:
    """Atoms in another order; with a `tail` all lie before the last axis, of that size."""
    wanted = runs(source, target)
    if len(wanted) == 1 or not wanted:
        return node
    at = {atom: i for i, atom in enumerate(source)}
    now = sorted(wanted, key=lambda run: at[run[0]])
    room = 3 if tail else 4
    if len(now) < room:
        wanted, now = _narrower(wanted, now, room)
    if len(now) <= room:
        ones, end = [1] * (room - len(now)), [tail] if tail else []
        node = _reshaped(b, node, [*ones, *map(size, now), *end])
        order = [len(ones) + now.index(run) for run in wanted]
        return b.transpose(node, [*range(len(ones)), *order, *([3] if tail else [])])
    for i, run in enumerate(wanted):  # one after the other comes forward
        j = now.index(run)
        if j != i:
            parts = [now[:i], now[i:j], [run], now[j + 1 :]]
            node = _reshaped(b, node, [size(flat(p)) for p in parts])
            node = b.transpose(node, (0, 2, 1, 3))
            now = [*now[:i], run, *now[i:j], *now[j + 1 :]]
    return node


def _narrower(
    wanted: list[Atoms], now: list[Atoms], room: int
) -> tuple[list[Atoms], list[Atoms]]:
    """Runs in two parts where there is room and one would be too long for an axis."""
    while len(now) < room:
        longest = max((r for r in now if len(r) > 1), key=size, default=())
        if size(longest) <= WIDE:
            break
        parts = [longest[:1], longest[1:]]
        wanted, now = (
            [p for run in runs_ for p in (parts if run == longest else [run])]
            for runs_ in (wanted, now)
        )
    return wanted, now


def _reshaped(b: IRBuilder, node: Node, shape: Sequence[int]) -> Node:
    while node.op == "reshape" and node.shape != tuple(shape):
        (node,) = node.inputs
    return b.reshape(node, shape)


def _const_arranged(b: IRBuilder, v: Value, place: Place) -> Value:
    assert v.node.weight is not None
    weight, source, target = v.node.weight, flat(v.place), flat(place)
    if len(runs(source, target)) > 1:
        shape, order = tuple(a.size for a in source), tuple(map(source.index, target))

        def read() -> np.ndarray:
            return np.ascontiguousarray(weight.read().reshape(shape).transpose(order))

        turned = Weight((weight.key, "turned", shape, order), read)
    else:
        turned = weight
    return Value(const(b, turned, sizes(place), v.node.dtype), v.core, place)


def const(b: IRBuilder, weight: Weight, shape: Sequence[int], dtype: str = "fp16") -> Node:
    """A constant of that shape, whatever that of its values."""
    w, x, y, z = shape

    def read() -> np.ndarray:
        return weight.read().reshape(w, x, y, z)

    return b.weight(Weight(weight.key, read), (w, x, y, z), dtype)


def exact(b: IRBuilder, v: Value) -> Value:
    """The value without padding."""
    if not v.padded:
        return v
    shape = (*v.node.shape[:3], size(v.place[3]))
    return attrs.evolve(v, node=b.slice(v.node, (0, 0, 0, 0), shape))


def padded(b: IRBuilder, v: Value, multiple: int) -> Value:
    """With zeros up to a multiple on the last axis."""
    more = -v.node.shape[3] % multiple
    if not more:
        return v
    return attrs.evolve(v, node=b.pad(v.node, (0, 0, 0, 0), (0, 0, 0, more)))


def alone(b: IRBuilder, v: Value, atoms: Atoms) -> tuple[Value, int]:
    """An axis with these atoms and no others on it, in any order, and which one it is."""
    for axis, group in enumerate(v.place):
        if set(group) == set(atoms) and (atoms or axis < 3):
            return (exact(b, v) if axis == 3 else v), axis
    place = _apart(v, atoms)
    axis = next(i for i, group in enumerate(place) if set(group) == set(atoms))
    v = arranged(b, v, place)
    return (exact(b, v) if axis == 3 else v), axis


def _apart(v: Value, atoms: Atoms) -> Place:
    wanted, order = set(atoms), flat(v.place)
    if not atoms:  # an axis of 1: what lies before the last axis makes room
        return placed([flat(v.place[:3])], v.place[3])
    first, last = flat(v.place[:3]), v.place[3]
    whole = first if wanted <= set(first) else order
    if not wanted <= set(whole) or not consecutive(
        tuple(a for a in whole if a in wanted), whole
    ):
        return (), atoms, (), tuple(a for a in order if a not in wanted)
    mine = tuple(a for a in whole if a in wanted)
    at = whole.index(mine[0])
    before, after = whole[:at], whole[at + len(mine) :]
    if whole is first:
        return placed([before, mine, after], last)
    return placed([before, mine], after) if after else placed([before], mine)


def merged(b: IRBuilder, v: Value, atoms: Atoms) -> Value:
    """The same with one atom in place of several that follow each other in the core."""
    if len(atoms) < 2:
        return v
    if not any(consecutive(atoms, group) for group in v.place):
        v = arranged(b, v, _together(v, atoms))
    one, (first, *others) = Atom(size(atoms)), atoms
    return substituted(v, {first: (one,), **dict.fromkeys(others, ())})


def _together(v: Value, atoms: Atoms) -> Place:
    """The others join the first of them where that is next to them anyway, else the last."""
    moved, anchor = set(atoms), atoms[-1]
    if consecutive(atoms, flat(v.place)):
        anchor = max(atoms, key=lambda a: next(i for i, g in enumerate(v.place) if a in g))
    groups: list[Atoms] = []
    for group in v.place:
        kept = [a for a in group if a not in moved or a is anchor]
        at = kept.index(anchor) if anchor in kept else -1
        groups.append(tuple(kept) if at < 0 else (*kept[:at], *atoms, *kept[at + 1 :]))
    a, c, d, e = groups
    return a, c, d, e


def conformed(b: IRBuilder, v: Value, axis: int, atoms: Atoms) -> Value:
    """The value with these atoms for an axis of the core, which is as long as they are."""
    own = v.core[axis]
    if own == atoms:
        return v
    if [a.size for a in own] == [a.size for a in atoms]:
        pairs = zip(own, atoms, strict=True)
        return substituted(v, {old: (new,) for old, new in pairs})
    v = merged(b, v, own)
    return substituted(v, {v.core[axis][0]: atoms})


def reshaped(b: IRBuilder, v: Value, shape: Sequence[int]) -> Value:
    """The core's reshape: the same values in C order, as another shape."""
    while True:
        left, core = list(flat(v.core)), list[Atoms]()
        new: dict[Atom, Atoms] = {}
        stuck: Atoms = ()
        for n in reversed(shape):
            axis: Atoms = ()
            while size(axis) < n and not stuck:
                atom, missing = left.pop(), n // size(axis)
                if missing % atom.size == 0 and n % size(axis) == 0:
                    axis = (atom, *axis)
                elif atom.size % missing == 0 and n % size(axis) == 0:
                    outer, inner = Atom(atom.size // missing), Atom(missing)
                    new[atom], axis = (outer, inner), (inner, *axis)
                    left.append(outer)
                else:
                    stuck = _merging(v, (left[-1], atom), new)
            if stuck:
                break
            core.insert(0, axis)
        if not stuck:
            return attrs.evolve(substituted(v, _closed(new)), core=tuple(core))
        v = merged(b, v, stuck)


def _closed(new: dict[Atom, Atoms]) -> dict[Atom, Atoms]:
    """Atoms that were split again in their turn."""

    def ends(atom: Atom) -> Atoms:
        return tuple(e for part in new[atom] for e in ends(part)) if atom in new else (atom,)

    return {atom: ends(atom) for atom in new}


def _merging(v: Value, stuck: Atoms, new: dict[Atom, Atoms]) -> Atoms:
    """The atoms of `v` itself that those at hand are parts of; two at least."""
    closed = _closed(new)
    order = flat(v.core)
    hit = [i for i, a in enumerate(order) if set(closed.get(a, (a,))) & set(stuck)]
    first, last = min(hit), max(hit)
    return order[max(0, first - (first == last)) : last + 1]


def sliced(b: IRBuilder, v: Value, axis: int, start: int, stop: int) -> Value:
    """The core's view: what lies from start to stop (not included) along an axis."""
    if (start, stop) == (0, v.shape[axis]):
        return v
    if start == stop:
        msg = "a view of nothing"
        raise Refused(msg)
    atoms = v.core[axis]
    inner = size(atoms[1:])
    if start % inner or stop % inner:
        v = merged(b, v, atoms)
        inner = 1
    first = v.core[axis][0]
    v, at = outermost(b, v, first)
    unit, (begin, end) = size(v.place[at][1:]), (start // inner, stop // inner)
    begins, shape = [0, 0, 0, 0], list(v.node.shape)
    begins[at], shape[at] = begin * unit, (end - begin) * unit
    if v.is_const:
        node = _const_sliced(b, v.node, begins, shape)
    else:
        node = b.slice(v.node, begins, shape)
    part = (Atom(end - begin),) if end - begin > 1 else ()
    return attrs.evolve(substituted(v, {first: part}), node=node)


def _const_sliced(b: IRBuilder, node: Node, begin: list[int], shape: list[int]) -> Node:
    assert node.weight is not None
    source = node.weight
    where = tuple(slice(i, i + n) for i, n in zip(begin, shape, strict=True))

    def read() -> np.ndarray:
        return np.ascontiguousarray(source.read().reshape(node.shape)[where])

    key = (source.key, "part", node.shape, tuple(begin), tuple(shape))
    return const(b, Weight(key, read), shape, node.dtype)


def outermost(b: IRBuilder, v: Value, atom: Atom) -> tuple[Value, int]:
    """The value with `atom` first on one of the axes, and which one that is."""
    at = next(i for i, group in enumerate(v.place) if atom in group)
    if v.place[at][0] is atom:
        return v, at
    order, last = flat(v.place[:3]), v.place[3]
    if at == 3:
        v, order, last = exact(b, v), flat(v.place), ()
    i = order.index(atom)
    place = placed([order[:i], order[i:]], last) if at < 3 else placed([order[:i]], order[i:])
    return arranged(b, v, place), next(i for i, g in enumerate(place) if atom in g)


def with_axis(v: Value, axis: int) -> Value:
    """An axis of 1 as an atom, to be extended: behind what precedes it in the core."""
    if v.core[axis]:
        return v
    new = Atom(1)
    before = [a for group in v.core[:axis] for a in group]
    at = next((i for i, g in enumerate(v.place[:3]) if before and before[-1] in g), None)
    groups = list(v.place)
    if at is None:
        groups[2] = (*groups[2], new)
    else:
        i = groups[at].index(before[-1]) + 1
        groups[at] = (*groups[at][:i], new, *groups[at][i:])
    a, c, d, e = groups
    core = tuple((new,) if i == axis else group for i, group in enumerate(v.core))
    return Value(v.node, core, (a, c, d, e))


def joined(b: IRBuilder, parts: Sequence[Value], axis: int) -> Value:
    """The core's concat: the parts behind each other along an axis.

    A port whose zeros are just where the other part belongs needs no padding.
    """
    first, *others = (merged(b, p, p.core[axis]) for p in parts)
    first = with_axis(first, axis)
    (mine,) = first.core[axis]
    first, at = outermost(b, first, mine)
    total = sum(p.shape[axis] for p in parts)
    if total * size(first.place[at][1:]) > WIDE:
        first, at = _alone_there(b, first, at)
    like, values = first, [first]
    for other in others:
        v = with_axis(fresh(other), axis)
        for i, atoms in enumerate(like.core):
            if i != axis:
                v = conformed(b, v, i, atoms)
        own, place = v.core[axis][0], like.place
        v = arranged(b, v, substituted(like, {mine: (own,)}).place)
        assert place[at][0] is mine
        values.append(v)
    unit = size(like.place[at][1:])
    if any(p.padded for p in values) and not _zeros_serve(values, at, unit * total):
        values = [exact(b, p) for p in values]
    extents = [p.shape[axis] * unit for p in values]
    node = _added(b, [p.node for p in values], extents, at)
    return attrs.evolve(substituted(like, {mine: (Atom(total),)}), node=node)


def _alone_there(b: IRBuilder, v: Value, at: int) -> tuple[Value, int]:
    """The first atom of an axis on an axis of its own, if there is room for one more."""
    head, rest = v.place[at][:1], v.place[at][1:]
    before = [group for group in v.place[:at] if group]
    between = [head] if at == 3 else [head, rest, *filter(None, v.place[at + 1 : 3])]
    groups = [*before, *between, rest if at == 3 else v.place[3]]
    if not rest or len(groups) > 4:
        return v, at
    a, b_, c, d = ((),) * (4 - len(groups)) + tuple(groups)
    made = arranged(b, v, (a, b_, c, d))
    return made, 4 - len(groups) + len(before)


def _zeros_serve(values: Sequence[Value], at: int, total: int) -> bool:
    """Whether the first part alone is padded, by zeros, up to where the last one ends."""
    first, *others = values
    ready = first.node.op == "input" and first.node.shape[3] == total
    return at == 3 and ready and not any(p.padded for p in others)


def _added(b: IRBuilder, parts: Sequence[Node], extents: Sequence[int], axis: int) -> Node:
    total, at, result = sum(extents), 0, None
    for part, n in zip(parts, extents, strict=True):
        before, after = [0, 0, 0, 0], [0, 0, 0, 0]
        before[axis], after[axis] = at, total - at - part.shape[axis]
        piece = b.pad(part, before, after)
        result = piece if result is None else b.add(result, piece)
        at += n
    assert result is not None
    return result


def checked(n: int, most: int, what: str) -> None:
    if n > most:
        msg = f"{n} {what}, the profile takes at most {most}"
        raise Refused(msg)
