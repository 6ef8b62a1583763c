"""Cuts the placed nodes into splits: stretches that one device computes in one go."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.emit import Placed
from umbel.plan.target import Target


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
    leaving: list[dict[Tensor, None]] = [
        {p.node: None for p in group if p.node.base is not None} for group in groups
    ]  # writes to state
    for i, group in enumerate(groups):
        for t in _reads(group):
            if made_in.get(t, i) != i:
                leaving[made_in[t]][t] = None
    for t in wanted:
        leaving[made_in[t]][t] = None
    return [
        Split(
            group[0].target,
            tuple(group),
            tuple(t for t in _reads(group) if made_in.get(t) != i),
            tuple(leaving[i]),
        )
        for i, group in enumerate(groups)
    ]


def _reads(group: Iterable[Placed]) -> dict[Tensor, None]:
    return {t.storage: None for p in group for t in p.node.inputs}


def _schedule(placed: Sequence[Placed]) -> list[list[Placed]]:
    """An order that stays on a device as long as something is ready there."""
    waits = _before(placed)
    readers: dict[int, list[int]] = {}
    ready: dict[str, list[int]] = {}  # by device, earliest first
    for i, before in enumerate(waits):
        for j in before:
            readers.setdefault(j, []).append(i)
        if not before:
            heapq.heappush(ready.setdefault(placed[i].target.name, []), i)
    groups: list[list[Placed]] = []
    while any(ready.values()):
        name = min((q[0], name) for name, q in ready.items() if q)[1]
        group: list[Placed] = []
        while ready[name]:
            i = heapq.heappop(ready[name])
            group.append(placed[i])
            for j in readers.get(i, ()):
                waits[j].discard(i)
                if not waits[j]:
                    heapq.heappush(ready.setdefault(placed[j].target.name, []), j)
        groups.append(group)
    return groups


def _before(placed: Sequence[Placed]) -> list[set[int]]:
    """What each node has to wait for: the makers of its inputs, and whoever used a state
    before it changes it, or changed it before."""
    made = {p.node: i for i, p in enumerate(placed)}
    changed: dict[Tensor, int] = {}
    used: dict[Tensor, set[int]] = {}
    waits = []
    for i, node in enumerate(p.node for p in placed):
        assert node.op is not None
        before = {made[t.storage] for t in node.inputs if t.storage in made}
        changes = {node.inputs[k].storage for k in node.op.mutates}
        for s in {t.storage for t in node.inputs if t.storage.role is Role.STATE}:
            before |= {changed[s]} if s in changed else set()
            if s in changes:
                before |= used.pop(s, set())
                changed[s] = i
            else:
                used.setdefault(s, set()).add(i)
        waits.append(before)
    return waits
