"""Cuts the placed nodes into splits: stretches that one device computes in one go."""

from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.emit import Placed
from umbel.plan.memory import Target


@attrs.frozen(eq=False)
class Split:
    """A stretch of nodes of one device; `inputs` are storages computed elsewhere, or leaves."""

    target: Target
    nodes: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]  # what others need, and writes to state

    def storages(self) -> list[list[Tensor]]:
        """What lies in memory while each of the nodes is computed.

        An opaque device may read inputs and write outputs whenever it likes.
        """
        if self.target.info.opaque:
            return [[t.storage for t in self.inputs + self.outputs]] * len(self.nodes)
        return [[t.storage for t in (*node.inputs, node)] for node in self.nodes]


def cut(
    placed: Sequence[Placed], wanted: Iterable[Tensor], *, single: bool = False
) -> list[Split]:
    """Splits in order. Nodes are reordered, where they may, so that there are few of them.

    `wanted` are storages that must be readable after the last split; `single` makes a split of
    every node (`--check`).
    """
    groups = [[p] for p in placed] if single else _schedule(placed)
    needed = set(wanted)  # after the split at hand: the last one comes first
    splits: list[Split] = []
    for group in reversed(groups):
        nodes = {p.node: None for p in group}
        read = dict.fromkeys(t.storage for node in nodes for t in node.inputs)
        inputs = tuple(t for t in read if t not in nodes)
        outputs = tuple(n for n in nodes if n in needed or n.base is not None)
        needed.update(inputs)
        splits.append(Split(group[0].target, tuple(nodes), inputs, outputs))
    return splits[::-1]


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
