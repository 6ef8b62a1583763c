"""Live activations: where they exceed the on-chip memory, and cuts that make them fit.

An operation whose live activations exceed it runs about a third slower (Orion: 32 MB). Values
that are computed row by row (or column by column) are then computed in pieces along that axis,
from the operation at the worst place back to what is small again, and joined by pad and add.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.estimate import live
from umbel_ane.compiler.ir import ELEMENTWISE, REDUCTIONS, UNARY, Graph, Node, rebuilt
from umbel_ane.profile import Profile

AXES = (3, 2, 1)  # S first, then rows, then channels or heads
MOST_PIECES = 16


def sram(graph: Graph, profile: Profile) -> Graph:
    """The graph with its worst place cut in pieces, or as it is where that is no better."""
    limit = profile.costs.sram_bytes
    peak, node = worst(graph)
    if node is None or peak <= limit:
        return graph
    for end, axis in itertools.product(_ends(graph, node), AXES):
        count = 2
        while count <= min(MOST_PIECES, end.shape[axis]) and _cuttable(end, node, axis):
            made = _cut(graph, end, axis, count)
            if (now := worst(made)[0]) <= limit or (now < peak and count == MOST_PIECES):
                return made
            count *= 2
    return graph


def warnings(graph: Graph, profile: Profile) -> tuple[str, ...]:
    """What exceeds the on-chip memory, the worst first; a line for all of it."""
    limit = profile.costs.sram_bytes
    over = [(size, node) for node, size in live(graph) if size > limit]
    if not over:
        return ()
    size, node = max(over, key=lambda pair: pair[0])
    label = f"{node.op} {node.name}".strip()
    slower = f"{profile.costs.sram_slowdown - 1:.0%}"
    text = f"{len(over)} operations have more live activations than {limit >> 20} MB, up to "
    return (f"{text}{size / 2**20:.0f} MB at {label}: about {slower} slower there",)


def worst(graph: Graph) -> tuple[int, Node | None]:
    """The most bytes of live activations, and the first operation with them."""
    peak, found = 0, None
    for node, size in live(graph):
        if size > peak:
            peak, found = size, node
    return peak, found


def _ends(graph: Graph, node: Node) -> list[Node]:
    """Where pieces may be joined: the node itself, or what follows from it alone and is
    smaller."""
    users: dict[Node, list[Node]] = {}
    for each in graph.nodes():
        for x in each.inputs:
            users.setdefault(x, []).append(each)
    kept = set(graph.outputs.values())
    found, at = [node], node
    while at not in kept and len(following := set(users.get(at, ()))) == 1:
        at = following.pop()
        found.append(at)
    return sorted(found, key=lambda n: n.nbytes)[:4]


def _cuttable(end: Node, node: Node, axis: int) -> bool:
    """Whether every value from `end` back to `node` can be computed in pieces along `axis`."""
    at = [(end, axis)]
    seen = set()
    while at:
        each, a = at.pop()
        if each is node:
            return _sources(each, a) is not None
        if (each, a) in seen:
            continue
        seen.add((each, a))
        at += [(x, b) for x, b in _sources(each, a) or () if b is not None]
    return False


def _sources(node: Node, axis: int) -> list[tuple[Node, int | None]] | None:
    """The inputs of a node, each with the axis along which a piece of the result needs a piece
    of it (None: all of it); None where the result cannot be computed in pieces."""
    if node.op in UNARY or (node.op in (*REDUCTIONS, "softmax") and node.attrs["axis"] != axis):
        return [(node.inputs[0], axis)]
    if node.op in ELEMENTWISE:
        return [(x, axis if x.shape[axis] > 1 else None) for x in node.inputs]
    if node.op == "conv1x1" and axis != 1:
        return [(node.inputs[0], axis), (node.inputs[1], None)]
    if node.op == "transpose":
        return [(node.inputs[0], node.attrs["perm"][axis])]
    if node.op == "matmul":
        x, y = node.inputs
        flip_x, flip_y = node.attrs["transpose_x"], node.attrs["transpose_y"]
        if axis < 2:
            return [(n, axis if n.shape[axis] > 1 else None) for n in (x, y)]
        if axis == 2:
            return [(x, 3 if flip_x else 2), (y, None)]
        return [(x, None), (y, 2 if flip_y else 3)]
    return None


def _cut(graph: Graph, end: Node, axis: int, count: int) -> Graph:
    """The graph with `end` computed in pieces that are joined."""
    build = IRBuilder()
    length = end.shape[axis]
    step = -(-length // count)
    parts: list[Node] = []
    for begin in range(0, length, step):
        pieces = _Pieces(build, {})
        parts.append(pieces.part(end, axis, begin, min(step, length - begin)))
    build.name = end.name
    joined = build.joined(parts, axis)
    new = Graph({k: joined if n is end else n for k, n in graph.outputs.items()})
    old = {id(end): joined}

    def change(node: Node) -> Node:
        if any(id(x) in old for x in node.inputs):
            return attrs.evolve(node, inputs=tuple(old.get(id(x), x) for x in node.inputs))
        return node

    return rebuilt(new, change)


@attrs.frozen(eq=False)
class _Pieces:
    """One piece: the same nodes on slices of what they read."""

    build: IRBuilder
    made: dict[tuple[Node, int], Node]

    def part(self, node: Node, axis: int, begin: int, n: int) -> Node:
        key = node, axis
        if key not in self.made:
            self.made[key] = self._part(node, axis, begin, n)
        return self.made[key]

    def _part(self, node: Node, axis: int, begin: int, n: int) -> Node:
        sources = _sources(node, axis)
        if sources is None or node.op in ("input", "const"):
            size = [n if a == axis else m for a, m in enumerate(node.shape)]
            self.build.name = node.name
            return self.build.slice(node, _at(axis, begin), size)
        inputs = tuple(x if a is None else self.part(x, a, begin, n) for x, a in sources)
        shape = tuple(n if a == axis else m for a, m in enumerate(node.shape))
        return attrs.evolve(node, inputs=inputs, shape=shape)  # type: ignore[arg-type]


def _at(axis: int, begin: int) -> Sequence[int]:
    return [begin if a == axis else 0 for a in range(4)]
