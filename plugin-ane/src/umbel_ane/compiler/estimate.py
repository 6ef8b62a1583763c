"""What a graph costs by a profile's figures, for plans and for `umbel ane explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import attrs

from umbel_ane import costs
from umbel_ane.compiler.cutting import Load
from umbel_ane.compiler.emit import inline
from umbel_ane.compiler.ir import Graph, Node
from umbel_ane.compiler.weights import stored_bytes
from umbel_ane.profile import Profile

FREE = ("input", "const", "reshape", "identity")  # move no values


@attrs.frozen
class Counts:
    """Figures of one program."""

    operations: Mapping[str, int]
    weight_bytes: int  # in weight files
    fp16_bytes: int  # the same weights without palettes
    conv_flops: int
    matmul_flops: int
    moved_bytes: int  # what operations but products read and write
    io_bytes: int  # inputs and outputs
    sram_bytes: int  # live activations at the worst place
    sram_node: str  # that place
    over_sram: int  # operations beyond the profile's size
    ms: float  # of one evaluation, with the host's turning of inputs and outputs

    @property
    def ops(self) -> int:
        return sum(self.operations.values())


def counts(graph: Graph, profile: Profile) -> Counts:
    """All figures of a program."""
    nodes = graph.nodes()
    run = [n for n in nodes if n.op not in ("input", "const")]
    load = Load(profile)
    for node in reversed(run):
        load.add(node)
    peaks = list(live(graph))
    size, worst = max(((b, repr(n)) for n, b in peaks), default=(0, ""))
    over = {n for n, b in peaks if b > profile.costs.sram_bytes}
    io = sum(n.nbytes for n in (*graph.inputs(), *graph.outputs.values()))
    weights = {n.weight.key: n for n in nodes if n.op == "const" and n.weight is not None}
    ms = profile.costs.dispatch_ms
    ms += sum(_ms(n, profile) * (profile.costs.sram_slowdown if n in over else 1) for n in run)
    ms += costs.transfer(profile.costs, io)
    return Counts(
        operations=Counter(n.op for n in run),
        weight_bytes=load.weight_bytes,
        fp16_bytes=sum(n.nbytes for n in weights.values()),
        conv_flops=sum(flops(n) for n in run if n.op == "conv1x1"),
        matmul_flops=sum(flops(n) for n in run if n.op == "matmul"),
        moved_bytes=sum(moved(n) for n in run),
        io_bytes=io,
        sram_bytes=size,
        sram_node=worst,
        over_sram=len(over),
        ms=ms,
    )


def live(graph: Graph) -> Iterator[tuple[Node, int]]:
    """Each operation, with the bytes of the activations that are live while it runs.

    Constants are not counted: weights are streamed. An input lies in its surface until it is
    first read. Reshapes share memory with what they read.
    """
    nodes = graph.nodes()
    root: dict[Node, Node] = {}
    for node in nodes:
        same = node.op in ("reshape", "identity") and node.inputs[0].op != "const"
        root[node] = root[node.inputs[0]] if same else node
    last = {root[x]: i for i, node in enumerate(nodes) for x in node.inputs}
    last.update((root[n], len(nodes)) for n in graph.outputs.values())
    level, waiting = 0, {n for n in nodes if n.op == "input"}
    dying: dict[int, int] = {}
    for node, i in last.items():
        if node.op != "const":
            dying[i] = dying.get(i, 0) + node.nbytes
    for i, node in enumerate(nodes):
        if node.op not in ("input", "const"):
            level += node.nbytes if root[node] is node else 0
            level += sum(x.nbytes for x in waiting.intersection(node.inputs))
            waiting.difference_update(node.inputs)
            yield node, level
        level -= dying.get(i, 0)


def flops(node: Node) -> int:
    """Of a product: two for each multiplication."""
    if node.op == "conv1x1":
        return 2 * node.size * node.inputs[1].shape[1]
    if node.op == "matmul":
        return 2 * node.size * node.inputs[0].shape[2 if node.attrs["transpose_x"] else 3]
    return 0


def moved(node: Node) -> int:
    """Bytes that an operation that is no product reads and writes."""
    if node.op in FREE or flops(node):
        return 0
    return node.nbytes + sum(x.nbytes for x in node.inputs if x.op != "const")


def _ms(node: Node, profile: Profile) -> float:
    """By the rates of `costs`, as the simulator's clock counts."""
    if not (done := flops(node)):
        return costs.elementwise(profile.costs, moved(node))
    held = sum(stored_bytes(x) for x in node.inputs if x.op == "const" and not inline(x))
    return costs.product(profile.costs, done, held, conv=node.op == "conv1x1")
