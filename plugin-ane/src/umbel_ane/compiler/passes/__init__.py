"""Passes: each a function graph -> graph in a file of its own, run to a fixed point."""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from umbel_ane.compiler.ir import Graph, Node
from umbel_ane.compiler.passes.casts import casts
from umbel_ane.compiler.passes.constraints import check, constraints
from umbel_ane.compiler.passes.dead import dead
from umbel_ane.compiler.passes.identities import identities
from umbel_ane.compiler.passes.sram import over, sram, warnings
from umbel_ane.profile import Profile

ROUNDS = 20  # at most


@attrs.frozen(eq=False)
class Passed:
    graph: Graph
    rounds: int  # the last of them changed nothing
    warnings: tuple[str, ...] = ()


def run(graph: Graph, profile: Profile) -> Passed:
    """All passes, until none changes anything; DeviceError where a rule stays broken."""
    before, rounds = signature(graph), 0
    left: object = None  # what the cuts could not make smaller
    while rounds < ROUNDS:
        graph = constraints(casts(identities(dead(graph))), profile)
        if _too_large(graph, profile) != left:
            graph = sram(graph, profile)
            left = _too_large(graph, profile)
        graph = shallow_first(graph)
        rounds += 1
        before, last = signature(graph), before
        if before == last:
            break
    check(graph, profile)
    return Passed(graph, rounds, warnings(graph, profile))


def _too_large(graph: Graph, profile: Profile) -> list[Hashable]:
    found = over(graph, profile.costs.sram_bytes)
    return [(node.op, node.name, node.shape, size) for node, size in found]


def shallow_first(graph: Graph) -> Graph:
    """Outputs of early layers come first, and so does what they follow from: else what all
    layers leave behind would be computed at the end, and be live until then."""
    depth: dict[Node, int] = {}
    for node in graph.nodes():
        depth[node] = 1 + max((depth[x] for x in node.inputs), default=0)
    ends = sorted(graph.outputs.items(), key=lambda end: depth[end[1]])
    return Graph(dict(ends))


def signature(graph: Graph) -> tuple[Hashable, ...]:
    """The same for graphs that are built alike."""
    nodes = graph.nodes()
    at = {node: i for i, node in enumerate(nodes)}
    ends = tuple((name, at[node]) for name, node in graph.outputs.items())
    return (*(_line(node, at) for node in nodes), ends)


def _line(node: Node, at: dict[Node, int]) -> Hashable:
    what = node.weight.key if node.weight is not None else node.name * (node.op == "input")
    inputs = tuple(at[x] for x in node.inputs)
    return node.op, inputs, node.shape, node.dtype, tuple(sorted(node.attrs.items())), what
