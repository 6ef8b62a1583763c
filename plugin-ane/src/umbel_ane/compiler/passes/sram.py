"""Live activations: where they exceed the on-chip memory, and cuts that make them fit.

An operation whose live activations exceed it runs about a third slower (Orion: 32 MB). Values
that are computed row by row (or column by column) are then computed in pieces along that axis,
from the operation at the worst place back to what is small again, and joined by pad and add.
"""

from __future__ import annotations

import itertools

import attrs

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.estimate import live
from umbel_ane.compiler.ir import ELEMENTWISE, REDUCTIONS, UNARY, Graph, Node, Shape4, rebuilt
from umbel_ane.profile import Profile

AXES = (3, 2, 1)  # S first, then rows, then channels or heads
PIECES = (2, 4, 8, 16)
PLACES = 4  # that are tried, the largest first, before it is left as it is


def sram(graph: Graph, profile: Profile) -> Graph:
    """The graph with what is too large cut in pieces, where that leaves fewer operations with
    too much around them; as it is where nothing helps."""
    limit = profile.costs.sram_bytes
    better: Graph | None = graph
    while better is not None:
        graph = better
        large = sorted(over(graph, limit), key=lambda pair: -pair[1])
        tried = (_smaller(graph, node, limit, len(large)) for node, _ in large[:PLACES])
        better = next((made for made in tried if made is not None), None)
    return graph


def over(graph: Graph, limit: int) -> list[tuple[Node, int]]:
    """The operations whose live activations exceed the limit, with their bytes."""
    return [(node, size) for node, size in live(graph) if size > limit]


def _smaller(graph: Graph, node: Node, limit: int, known: int) -> Graph | None:
    """In pieces around `node`, as many as leave the fewest operations over the limit, where
    that is less than `known`."""
    for end, axis in itertools.product(_ends(graph, node), AXES):
        if not _cuttable(end, node, axis):
            continue
        counts = [n for n in PIECES if n <= end.shape[axis]]
        made = [_cut(graph, end, node, axis, n) for n in counts]
        left = [len(over(each, limit)) for each in made]
        if min(left, default=known) < known:
            return made[left.index(min(left))]
    return None


def warnings(graph: Graph, profile: Profile) -> tuple[str, ...]:
    """What exceeds the on-chip memory, the worst first; a line for all of it."""
    limit = profile.costs.sram_bytes
    large = over(graph, limit)
    if not large:
        return ()
    node, size = max(large, key=lambda pair: pair[1])
    label = f"{node.op} {node.name}".strip()
    slower = f"{profile.costs.sram_slowdown - 1:.0%}"
    text = f"{len(large)} operations have more live activations than {limit >> 20} MB, up to "
    return (f"{text}{size / 2**20:.0f} MB at {label}: about {slower} slower there",)


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
    """Whether pieces of `end` along `axis` go back to `node`, through large values alone."""
    at, least = [(end, axis)], _large(node)
    seen = set()
    while at:
        each, a = at.pop()
        if each is node:
            return _sources(each, a) is not None
        if (each, a) in seen:
            continue
        seen.add((each, a))
        at += [
            (x, b) for x, b in _sources(each, a) or () if b is not None and x.nbytes >= least
        ]
    return False


def _large(node: Node) -> float:
    """Values of at least so many bytes are computed in pieces with it; smaller ones whole."""
    return node.nbytes / 2


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


def _cut(graph: Graph, end: Node, node: Node, axis: int, count: int) -> Graph:
    """The graph with `end` computed in pieces that are joined, from `node` on."""
    build = IRBuilder()
    length = end.shape[axis]
    step = -(-length // count)
    parts: list[Node] = []
    for begin in range(0, length, step):
        pieces = _Pieces(build, _large(node), min(step, length - begin))
        parts.append(pieces.computed(end, axis, begin))
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
    least: float  # bytes of a value that is computed in pieces itself
    length: int
    made: dict[tuple[Node, int], Node] = attrs.field(factory=dict)

    def part(self, node: Node, axis: int, begin: int) -> Node:
        key = node, axis
        if key not in self.made:
            leaf = node.op in ("input", "const") or node.nbytes < self.least
            how = self.sliced if leaf or _sources(node, axis) is None else self.computed
            self.made[key] = how(node, axis, begin)
        return self.made[key]

    def sliced(self, node: Node, axis: int, begin: int) -> Node:
        self.build.name = node.name
        at = [begin if a == axis else 0 for a in range(4)]
        return self.build.slice(node, at, self._shape(node, axis))

    def computed(self, node: Node, axis: int, begin: int) -> Node:
        sources = _sources(node, axis) or ()
        inputs = tuple(x if a is None else self.part(x, a, begin) for x, a in sources)
        return attrs.evolve(node, inputs=inputs, shape=self._shape(node, axis))

    def _shape(self, node: Node, axis: int) -> Shape4:
        b, c, h, s = (self.length if a == axis else m for a, m in enumerate(node.shape))
        return b, c, h, s
