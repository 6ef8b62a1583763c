"""The graph that programs are made from: 26 operations on four axes.

They are those of Orion's graph (arXiv 2603.06728) without the banned `concat`. Every value has
four axes, [B, C, 1, S] by preference: channels on the second, what convolutions go over on the
last. A node is immutable and gives one value; a pass makes new nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import attrs
import numpy as np

Shape4 = tuple[int, int, int, int]

ELEMENTWISE = ("add", "sub", "mul", "pow")  # two operands that broadcast, the same dtype
UNARY = ("relu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "neg", "identity", "cast")
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max")  # attrs: axis (one), the axis stays
MOVES = ("reshape", "transpose", "slice", "split", "pad")
# reshape: -; transpose: perm; slice: begin, size (four each); split: axis, sizes, index (which
# of the parts this node is); pad: before, after (four each, zeros)
OPS = frozenset(
    (
        "input",
        "const",
        "conv1x1",
        "matmul",
        "softmax",
        *ELEMENTWISE,
        *UNARY,
        *REDUCTIONS,
        *MOVES,
    )
)
# conv1x1: (x [B, in, H, S], weight [out, in, 1, 1]) -> [B, out, H, S], no bias
# matmul: (x, y), attrs transpose_x, transpose_y: of the last two axes; the first two broadcast
# softmax: attrs axis
FP16, FP32, INT32 = "fp16", "fp32", "int32"


@attrs.frozen(eq=False, repr=False)
class Palette:
    """A weight as indices into tables of 2^bits values, one for each group of outputs."""

    bits: int  # 4 or 8
    groups: int
    read: Callable[[], tuple[np.ndarray, np.ndarray]]  # indices; tables (groups, 2^bits)


@attrs.frozen(eq=False, repr=False)
class Weight:
    """The values of a constant. `read` gives them when a program is written, not before.

    `key` is the same for the same values: what the file calls it and how it was arranged.
    With a `palette` they are the values that the palette stands for.
    """

    key: Hashable
    read: Callable[[], np.ndarray]
    palette: Palette | None = None


@attrs.frozen(eq=False, repr=False)
class Node:
    """One value: (op, inputs, attrs) and what follows from them."""

    op: str
    inputs: tuple[Node, ...]
    shape: Shape4
    dtype: str = FP16
    attrs: Mapping[str, Any] = attrs.field(factory=dict)
    name: str = ""  # of an input: what fills it; of others: the core's node, for messages
    weight: Weight | None = None  # of a constant

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * (2 if self.dtype == FP16 else 4)

    def __repr__(self) -> str:
        label = f" {self.name}" if self.name else ""
        return f"<{self.op}{label} {list(self.shape)} {self.dtype}>"


@attrs.frozen(eq=False)
class Graph:
    """Named values that are wanted; everything else follows from them."""

    outputs: Mapping[str, Node]

    def nodes(self) -> list[Node]:
        """All nodes, each after its inputs, in an order that depends on the graph alone."""
        return ordered(self.outputs.values())

    def inputs(self) -> list[Node]:
        return [node for node in self.nodes() if node.op == "input"]


def ordered(ends: Iterable[Node]) -> list[Node]:
    """What `ends` follow from, and themselves: each node after its inputs."""
    done: dict[Node, None] = {}
    for end in ends:
        stack = [(end, iter(end.inputs))]
        while stack:
            node, left = stack[-1]
            following = next((n for n in left if n not in done), None)
            if following is not None:
                stack.append((following, iter(following.inputs)))
            else:
                done.setdefault(node)
                stack.pop()
    return list(done)


def rebuilt(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """The graph with every node put through `change`, whose inputs have been before."""
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = tuple(made[n] for n in node.inputs)
        same = inputs == node.inputs
        made[node] = change(node if same else attrs.evolve(node, inputs=inputs))
    return Graph({name: made[node] for name, node in graph.outputs.items()})
