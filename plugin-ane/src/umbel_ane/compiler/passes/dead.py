"""Dead code: what is computed twice is computed once, what nobody reads is not computed.

A graph holds what its outputs follow from, so a value without a reader is gone by itself. What
stays is computed for nothing all the same where equal values are made twice, or where only a
part of a moved value is read. Results are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Graph, Node, rebuilt


def dead(graph: Graph) -> Graph:
    known: dict[Hashable, Node] = {}
    build = IRBuilder()

    def change(node: Node) -> Node:
        build.name = node.name
        made = _narrowed(build, node)
        return known.setdefault(_key(made), made)

    return rebuilt(graph, change)


def _key(node: Node) -> Hashable:
    what: Hashable = ()
    if node.op == "input":
        what = node.name
    elif node.weight is not None:
        palette = node.weight.palette
        what = node.weight.key, palette and (palette.bits, palette.groups)
    ids = tuple(map(id, node.inputs))
    return node.op, ids, node.shape, node.dtype, tuple(sorted(node.attrs.items())), what


def _narrowed(build: IRBuilder, node: Node) -> Node:
    """A slice or part reads no more than it needs of what was only moved."""
    if node.op not in ("slice", "split"):
        return node
    x = node.inputs[0]
    begin, size = window(node)
    if x.op in ("slice", "split"):
        within, _ = window(x)
        begin = tuple(a + b for a, b in zip(begin, within, strict=True))
        return build.slice(x.inputs[0], begin, size)
    if x.op == "pad":
        moved = [b - a for b, a in zip(begin, x.attrs["before"], strict=True)]
        inner = x.inputs[0]
        axes = zip(moved, size, inner.shape, strict=True)
        if all(b >= 0 and b + n <= m for b, n, m in axes):
            return build.slice(inner, moved, size)
    return node


def window(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and size of a slice, or of a part of a split."""
    if node.op == "slice":
        return tuple(node.attrs["begin"]), tuple(node.attrs["size"])
    axis, sizes, index = (node.attrs[k] for k in ("axis", "sizes", "index"))
    begin = [0, 0, 0, 0]
    begin[axis] = sum(sizes[:index])
    return tuple(begin), node.shape
