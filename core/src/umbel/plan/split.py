"""Cuts the placed nodes into splits: stretches that one device computes in one go."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.emit import Placed
from umbel.plan.memory import Target


@attrs.frozen(eq=False)
class Split:
    """A stretch of nodes of one device; `inputs` are storages computed elsewhere, or leaves."""

    target: Target
    placed: tuple[Placed, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        return tuple(p.node for p in self.placed)


def cut(
    placed: Sequence[Placed], wanted: Iterable[Tensor], *, single: bool = False
) -> list[Split]:
    """Splits in order. Nodes are reordered, where they may, so that there are few of them.

    `wanted` are storages that must be readable after the last split; `single` makes a split of
    every node (`--check`).
    """
    groups = [[p] for p in placed] if single else _schedule(placed)
    made_in = {p.node: i for i, group in enumerate(groups) for p in group}
    inputs = [
        tuple(t for t in _reads(group) if made_in.get(t) != i) for i, group in enumerate(groups)
    ]
    needed = {*wanted, *itertools.chain(*inputs)}
    return [
        Split(group[0].target, tuple(group), read, tuple(_outputs(group, needed)))
        for group, read in zip(groups, inputs, strict=True)
    ]


def _reads(group: Iterable[Placed]) -> dict[Tensor, None]:
    return {t.storage: None for p in group for t in p.node.inputs}


def _outputs(group: Iterable[Placed], needed: set[Tensor]) -> Iterable[Tensor]:
    """What others need of a group, and its writes to state."""
    return (p.node for p in group if p.node in needed or p.node.base is not None)


def _schedule(placed: Sequence[Placed]) -> list[list[Placed]]:
    """An order that stays on a device as long as something is ready there."""
    waits = _before(placed)
    groups: list[list[Placed]] = []
    left = list(range(len(placed)))
    while left:
        target = placed[left[0]].target  # what comes first is always ready
        group, later = [], dict[int, None]()
        for i in left:
            if placed[i].target is target and waits[i].isdisjoint(later):
                group.append(placed[i])
            else:
                later[i] = None
        groups.append(group)
        left = list(later)
    return groups


def _before(placed: Sequence[Placed]) -> list[set[int]]:
    """What each node has to wait for: the makers of its inputs, and whoever used the same
    state before."""
    latest: dict[Tensor, int] = {}  # who made a storage, or used a state
    waits = []
    for i, node in enumerate(p.node for p in placed):
        storages = {t.storage for t in node.inputs}
        waits.append({latest[s] for s in storages if s in latest})
        latest.update({s: i for s in storages if s.role is Role.STATE})
        latest[node] = i
    return waits
