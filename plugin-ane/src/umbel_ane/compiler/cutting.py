"""Cuts a graph into pieces within a profile's limits: as few as possible, then where little
crosses from one to the next.

Pieces are stretches of one order of the nodes. Each limit holds for a shorter stretch if it
holds for a longer one, but for the number of inputs, which is looked at for each stretch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs
from umbel.errors import DeviceError

from umbel_ane.compiler.emit import inline
from umbel_ane.compiler.ir import ELEMENTWISE, FP16, Graph, Node
from umbel_ane.compiler.weights import identity, stored_bytes
from umbel_ane.profile import Profile

AROUND = 8  # a narrow place is the narrowest within so many nodes to each side


@attrs.define(eq=False)
class Load:
    """What a stretch of nodes needs; they are added from the last to the first."""

    profile: Profile
    ops: int = 0
    weight_bytes: int = 0
    files: int = 0
    scalars: bool = False
    given: set[Node] = attrs.field(factory=set)  # what it reads from outside
    _weights: set[object] = attrs.field(factory=set)
    _splits: set[object] = attrs.field(factory=set)

    def add(self, node: Node) -> None:
        self.given.discard(node)
        self._count(node)
        for x in node.inputs:
            if x.op != "const":
                self.given.add(x)
            elif x.size == 1 and node.op in ELEMENTWISE:
                self.scalars = True
            elif not inline(x) and (key := identity(x)) not in self._weights:
                self._weights.add(key)
                self.weight_bytes += stored_bytes(x)
                self.files += 2 if x.weight and x.weight.palette else 1

    def _count(self, node: Node) -> None:
        if node.op == "split":
            key = node.inputs[0], node.attrs["axis"], node.attrs["sizes"]
            if key in self._splits:
                return
            self._splits.add(key)
        self.scalars |= node.op == "neg"  # written as times -1
        self.ops += 1

    def too_much(self) -> str | None:
        """Which limit it breaks, for messages; None where it fits."""
        p = self.profile
        if p.max_weight_bytes and self.weight_bytes > p.max_weight_bytes:
            return f"{self.weight_bytes} bytes of weights, at most {p.max_weight_bytes}"
        files = min(self.files, 1) if p.one_file else self.files
        most = p.max_files - (p.scalar_takes_file and self.scalars)
        if p.max_files and files > most:
            return f"{files} weight files, at most {most}"
        if p.max_program_ops and self.ops > p.max_program_ops:
            return f"{self.ops} operations, at most {p.max_program_ops}"
        return None

    def too_many_inputs(self) -> str | None:
        most = self.profile.max_inputs
        if most and len(self.given) > most:
            return f"{len(self.given)} inputs, at most {most}"
        return None


def cut(graph: Graph, profile: Profile) -> list[list[Node]]:
    """The nodes of each piece, in the order in which the pieces run."""
    nodes = [n for n in graph.nodes() if n.op not in ("input", "const")]
    if not nodes:
        return [[]]
    whole = _load(nodes, profile)
    if not (whole.too_much() or whole.too_many_inputs()):
        return [nodes]
    costs = crossing(nodes, profile)
    for places in (_narrow(costs), range(len(costs))):
        found = _best(nodes, costs, list(places), profile)
        if found is not None:
            return [nodes[a:b] for a, b in itertools.pairwise(found)]
    raise _refused(nodes, profile)


def crossing(nodes: Sequence[Node], profile: Profile) -> list[float]:
    """For each place before, between and after the nodes: bytes that would cross it. What no
    port takes makes a place impossible."""
    at = {node: i for i, node in enumerate(nodes)}
    change = [0.0] * (len(nodes) + 2)
    bad = [0] * (len(nodes) + 2)
    last: dict[Node, int] = {}
    for i, node in enumerate(nodes):
        last.update((x, i) for x in node.inputs if x in at)
    for node, end in last.items():
        change[at[node] + 1] += node.nbytes
        change[end + 1] -= node.nbytes
        if node.dtype != FP16 and not (node.dtype == "fp32" and profile.fp32_io):
            bad[at[node] + 1] += 1
            bad[end + 1] -= 1
    costs, level, wrong = [], 0.0, 0
    for i in range(len(nodes) + 1):
        level, wrong = level + change[i], wrong + bad[i]
        costs.append(math.inf if wrong else level)
    return costs


def _narrow(costs: Sequence[float]) -> list[int]:
    end = len(costs) - 1
    places = [
        i for i in range(1, end) if costs[i] == min(costs[max(0, i - AROUND) : i + AROUND + 1])
    ]
    return [0, *places, end]


def _best(
    nodes: Sequence[Node], costs: Sequence[float], places: list[int], profile: Profile
) -> list[int] | None:
    """The places to cut at, both ends included: fewest pieces, then fewest bytes."""
    best: dict[int, tuple[int, float, int]] = {0: (0, 0.0, 0)}  # pieces, bytes, from where
    for j, end in enumerate(places[1:], 1):
        if math.isinf(costs[end]):
            continue
        load, at = Load(profile), end
        for start in reversed(places[:j]):
            for node in reversed(nodes[start:at]):
                load.add(node)
            at = start
            if load.too_much():
                break
            if start in best and not load.too_many_inputs():
                pieces, moved, _ = best[start]
                known = best.get(end)
                found = pieces + 1, moved + costs[end], start
                if known is None or found[:2] < known[:2]:
                    best[end] = found
    if places[-1] not in best:
        return None
    found_places = [places[-1]]
    while found_places[-1]:
        found_places.append(best[found_places[-1]][2])
    return found_places[::-1]


def _load(nodes: Sequence[Node], profile: Profile) -> Load:
    load = Load(profile)
    for node in reversed(nodes):
        load.add(node)
    return load


def _refused(nodes: Sequence[Node], profile: Profile) -> DeviceError:
    """Names the first node that no program can hold."""
    msg = "no program within the limits of the Neural Engine can hold an operation"
    do = "take another device for this model"
    for node in nodes:
        load = _load([node], profile)
        if reason := load.too_much() or load.too_many_inputs():
            where = f"{node!r}, profile {profile.name}"
            return DeviceError(msg, where=where, got=reason, do=do)
    got = "values cross every place that no surface takes"
    return DeviceError(msg, where=f"profile {profile.name}", got=got, do=do)
