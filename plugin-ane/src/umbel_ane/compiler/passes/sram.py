"""Live activations: where they exceed the on-chip memory, and cuts that make them fit.

An operation whose live activations exceed it runs about a third slower (Orion: 32 MB). Values
that are computed row by row (or column by column) are then computed in pieces along that axis,
from the operation at the worst place back to what is small again, and joined by pad and add.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping

import attrs

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.estimate import live
from umbel_ane.compiler.ir import ELEMENTWISE, REDUCTIONS, UNARY, Graph, Node, Shape4
from umbel_ane.profile import Profile

AXES = (3, 2, 1)  # S first, then rows, then channels or heads
PIECES = (2, 4, 8, 16)
PLACES = 4  # that are tried, the largest first, before it is left as it is


def sram(graph: Graph, profile: Profile) -> Graph:
    """The graph with what is too large cut in pieces, where that leaves fewer operations with
    too much around them; as it is where nothing helps.

    What is alike, as the same operation in every layer, is cut alike.
    """
    limit = profile.costs.sram_bytes
    better: Graph | None = graph
    while better is not None:
        graph = better
        large = sorted(over(graph, limit), key=lambda pair: -pair[1])
        kinds: dict[Hashable, list[Node]] = {}
        for node, _ in large:
            kinds.setdefault(_kind(node), []).append(node)
        some = list(kinds.values())[:PLACES]
        tried = (_smaller(graph, alike, limit, len(large)) for alike in some)
        better = next((made for made in tried if made is not None), None)
    return graph


def _kind(node: Node) -> Hashable:
    return node.op, node.shape, tuple(sorted(node.attrs.items()))


def over(graph: Graph, limit: int) -> list[tuple[Node, int]]:
    """The operations whose live activations exceed the limit, with their bytes."""
    return [(node, size) for node, size in live(graph) if size > limit]


def _smaller(graph: Graph, alike: list[Node], limit: int, known: int) -> Graph | None:
    """In pieces around these nodes, as many as leave the fewest operations over the limit
    around the first of them, where that is less than `known`."""
    users = _users(graph)
    chains = [_chain(graph, users, node) for node in alike]
    first = chains[0]
    for end, axis in itertools.product(sorted(first, key=lambda n: n.nbytes)[:4], AXES):
        if not _cuttable(end, alike[0], axis):
            continue
        steps = first.index(end)
        pairs = [
            (chain[steps], node)
            for chain, node in zip(chains, alike, strict=True)
            if len(chain) > steps
            and _kind(chain[steps]) == _kind(end)
            and _cuttable(chain[steps], node, axis)
        ]
        counts = [n for n in PIECES if n <= end.shape[axis]]
        if not counts or _left(graph, pairs[:1], axis, counts[-1], limit) >= known:
            continue
        best = min(counts, key=lambda n: _left(graph, pairs[:1], axis, n, limit))
        alone, made = (_cut(graph, dict(some), axis, best) for some in (pairs[:1], pairs))
        return made if len(over(made, limit)) < known else alone
    return None


def _left(
    graph: Graph, pairs: list[tuple[Node, Node]], axis: int, count: int, limit: int
) -> int:
    """How many operations are over the limit after such a cut."""
    return len(over(_cut(graph, dict(pairs), axis, count), limit))


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


def _users(graph: Graph) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {}
    for each in graph.nodes():
        for x in each.inputs:
            users.setdefault(x, []).append(each)
    return users


def _chain(graph: Graph, users: Mapping[Node, list[Node]], node: Node) -> list[Node]:
    """Where pieces may be joined: the node itself, and what follows from it alone."""
    kept = set(graph.outputs.values())
    found, at = [node], node
    while at not in kept and len(following := set(users.get(at, ()))) == 1:
        at = following.pop()
        found.append(at)
    return found


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


def _cut(graph: Graph, ends: Mapping[Node, Node], axis: int, count: int) -> Graph:
    """The graph with each of `ends` computed in pieces that are joined, from the node on that
    it is given with."""
    build = IRBuilder()
    new: dict[Node, Node] = {}
    for end, node in ends.items():
        length = end.shape[axis]
        step = -(-length // count)
        parts: list[Node] = []
        for begin in range(0, length, step):
            pieces = _Pieces(build, _large(node), min(step, length - begin))
            parts.append(pieces.computed(end, axis, begin))
        build.name = end.name
        new[end] = build.joined(parts, axis)
    return _replaced(graph, new)


def _replaced(graph: Graph, new: Mapping[Node, Node]) -> Graph:
    """The graph with other nodes in the place of some, which may follow from each other."""
    made: dict[Node, Node] = {}
    for end in graph.outputs.values():
        stack = [new.get(end, end)]
        while stack:
            node = stack[-1]
            inputs = [new.get(x, x) for x in node.inputs]
            missing = [x for x in inputs if x not in made]
            if node in made or not missing:
                stack.pop()
                if node not in made:
                    found = tuple(made[x] for x in inputs)
                    same = found == node.inputs
                    made[node] = node if same else attrs.evolve(node, inputs=found)
            else:
                stack += missing[::-1]
    return Graph({k: made[new.get(n, n)] for k, n in graph.outputs.items()})


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
