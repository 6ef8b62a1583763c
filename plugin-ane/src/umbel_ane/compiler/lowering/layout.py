"""Where the values of a core tensor lie in a value of four axes.

Every axis of the core is a product of atoms, its outermost first; every one of the four axes
holds some atoms, too. So to split, join and reorder axes of the core is to write down the same
atoms differently: data moves only where an operation wants them to lie in another way. An axis
of 1 has no atoms. The last of the four axes may be longer than its atoms say: what lies behind
them is padding, of which nothing is known but that it is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from umbel_ane.compiler.ir import Node, Shape4


@attrs.frozen(eq=False)
class Atom:
    """A part of an axis that is never split; it is itself, whatever its size."""

    size: int

    def __repr__(self) -> str:
        return f"<{self.size}>"


Atoms = tuple[Atom, ...]
Place = tuple[Atoms, Atoms, Atoms, Atoms]


class Refused(Exception):  # noqa: N818
    """What cannot be lowered; the text is the reason, for users."""


@attrs.frozen(eq=False)
class Value:
    """A core tensor: the node that holds it, the atoms of its axes, and where these lie."""

    node: Node
    core: tuple[Atoms, ...]
    place: Place

    @property
    def shape(self) -> tuple[int, ...]:
        """As the core has it."""
        return tuple(map(size, self.core))

    @property
    def padded(self) -> bool:
        return self.node.shape[3] != size(self.place[3])

    @property
    def is_const(self) -> bool:
        return self.node.op == "const"


def size(atoms: Iterable[Atom]) -> int:
    return math.prod(a.size for a in atoms)


def flat(groups: Iterable[Atoms]) -> Atoms:
    return tuple(a for group in groups for a in group)


def sizes(place: Place) -> Shape4:
    a, b, c, d = map(size, place)
    return a, b, c, d


def atoms_of(shape: Iterable[int]) -> tuple[Atoms, ...]:
    """One new atom for each axis that is longer than 1."""
    return tuple((Atom(n),) if n > 1 else () for n in shape)


def only(place: Sequence[Atoms], kept: Iterable[Atom]) -> Place:
    """The place without the atoms that are not `kept`."""
    wanted = set(kept)
    a, b, c, d = (tuple(x for x in group if x in wanted) for group in place)
    return a, b, c, d


def placed(groups: Sequence[Atoms], last: Atoms) -> Place:
    """`last` on the last axis and up to three groups before it: one on the second, where
    channels are at home."""
    full = [g for g in groups if g]
    rows: dict[int, list[Atoms]] = {0: [(), (), ()], 1: [(), *full, ()], 2: [(), *full]}
    a, b, c = rows.get(len(full), full)
    return a, b, c, last


def substituted(value: Value, new: Mapping[Atom, Atoms]) -> Value:
    """The same with other names for atoms, or several (of the same product) for one."""

    def groups(old: Iterable[Atoms]) -> list[Atoms]:
        return [tuple(x for a in group for x in new.get(a, (a,))) for group in old]

    a, b, c, d = groups(value.place)
    return Value(value.node, tuple(groups(value.core)), (a, b, c, d))


def fresh(value: Value) -> Value:
    """The same with atoms of its own: two values that follow from one may share atoms that
    mean different axes."""
    return substituted(value, {a: (Atom(a.size),) for a in flat(value.core)})


def permuted(value: Value, axes: Sequence[int]) -> Value:
    return attrs.evolve(value, core=tuple(value.core[a] for a in axes))


def runs(source: Atoms, target: Atoms) -> list[Atoms]:
    """What stays together on the way from one order to the other, in the order of `target`."""
    at = {atom: i for i, atom in enumerate(source)}
    found: list[list[Atom]] = []
    for atom in target:
        if found and at[atom] == at[found[-1][-1]] + 1:
            found[-1].append(atom)
        else:
            found.append([atom])
    return [tuple(run) for run in found]


def consecutive(atoms: Atoms, within: Atoms) -> bool:
    """Whether they stand behind each other there, in this order."""
    if not atoms or atoms[0] not in within:
        return not atoms
    start = within.index(atoms[0])
    return within[start : start + len(atoms)] == atoms
