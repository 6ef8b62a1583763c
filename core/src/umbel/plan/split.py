"""Cuts the placed nodes into splits: stretches that one device computes in one go."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Tensor
from umbel.plan.place import Placed
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
    made_in = {p.node.storage: i for i, group in enumerate(groups) for p in group}
    read_later: dict[int, dict[Tensor, None]] = {}
    for i, group in enumerate(groups):
        for t in _reads(group):
            home = made_in.get(t, i)
            if home < i:
                read_later.setdefault(home, {})[t] = None
    for t in wanted:
        if t in made_in:
            read_later.setdefault(made_in[t], {})[t] = None
    splits = []
    for i, group in enumerate(groups):
        inputs = [t for t in _reads(group) if made_in.get(t, -1) != i or t.op is None]
        outputs = [p.node for p in group if p.node.op is not None and p.node.op.writes]
        outputs += [t for t in read_later.get(i, {}) if t not in outputs]
        splits.append(Split(group[0].target, tuple(group), tuple(inputs), tuple(outputs)))
    return splits


def _reads(group: Iterable[Placed]) -> dict[Tensor, None]:
    return {t.storage: None for p in group for t in p.node.inputs}


def _schedule(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Topological order that stays on a device as long as something is ready there."""
    order = {p.node: i for i, p in enumerate(placed)}
    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for i, p in enumerate(placed):
        before = {order[n] for t in p.node.inputs for n in _makers(t, order)}
        waits.append(len(before))
        for j in before:
            readers.setdefault(j, []).append(i)
    ready: dict[str, list[int]] = {}
    for i, n in enumerate(waits):
        if n == 0:
            heapq.heappush(ready.setdefault(placed[i].target.name, []), i)
    groups: list[list[Placed]] = []
    while any(ready.values()):
        name = min((q[0], name) for name, q in ready.items() if q)[1]
        group: list[Placed] = []
        while ready[name]:
            i = heapq.heappop(ready[name])
            group.append(placed[i])
            for j in readers.get(i, ()):
                waits[j] -= 1
                if waits[j] == 0:
                    heapq.heappush(ready.setdefault(placed[j].target.name, []), j)
        groups.append(group)
    return groups


def _makers(t: Tensor, order: dict[Tensor, int]) -> Iterable[Tensor]:
    """The placed nodes that `t` depends on: itself, or what its chain of views looks at."""
    while t not in order and t.op is not None and t.inputs:
        t = t.inputs[0]
    return (t,) if t in order else ()
