"""One more output for chips on which NaN turns into a number: whether something was infinite.

There, what leaves float16's range in the middle of a program would leave it as finite rubbish:
an infinity itself gets through, but infinity less infinity, or times zero, does not. So the
largest values of what products read and norms compare, made small, are added up: the sum is
infinite where one of them was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Node

SMALL = 2.0**-12  # hundreds of finite values together stay finite
PRODUCTS = ("conv1x1", "matmul")


def watched(build: IRBuilder, nodes: Sequence[Node]) -> Node | None:
    """A number (1, 1, 1, 1) of these nodes of a graph; None: there is nothing to watch."""
    build.name = ""
    total: Node | None = None
    for node in _seen(nodes):
        part = build.mul(_largest(build, node), SMALL)
        total = part if total is None else build.add(total, part)
    return total


def _seen(nodes: Sequence[Node]) -> Iterator[Node]:
    """What products read that is computed, and the magnitudes of norms, each once."""
    made = set(nodes)
    read = [x for node in nodes if node.op in PRODUCTS for x in node.inputs if x in made]
    levels = [node for node in nodes if node.op == "reduce_max"]
    yield from dict.fromkeys([*read, *levels])


def _largest(build: IRBuilder, x: Node) -> Node:
    """Of a value and its negative, over all axes."""
    both = []
    for part in (x, build.mul(x, -1.0)):
        for axis in range(4):
            if part.shape[axis] > 1:
                part = build.reduce("reduce_max", part, axis)
        both.append(part)
    return build.add(*both)
