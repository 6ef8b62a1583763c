"""Weights as inputs: a graph whose constants are given to it instead of baked in.

They can change without a compile, and one program serves all layers whose shapes are the
same. The price: a 1x1 convolution needs its weight at compile time, so that it becomes a
matmul, which takes three times as long (constraint 17).
"""

from __future__ import annotations

import attrs

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Node, Shape4, rebuilt
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.ports import Held, Source


def held(lowered: Lowered) -> Lowered:
    """The same with all weights as inputs but single numbers."""
    build, sources = IRBuilder(), dict[str, Source](lowered.inputs)
    given: dict[Node, Node] = {}  # what a constant is now -> the input

    def change(node: Node) -> Node:
        build.name = node.name
        if node.op == "const" and node.size > 1 and node.weight is not None:
            name = f"held{len(given):04}"
            leaf = build.input(name, _port(node.shape), node.dtype)
            sources[name] = Held(node.weight, leaf.shape)
            shaped = build.reshape(leaf, node.shape)
            given[shaped] = leaf
            return shaped
        if node.op == "conv1x1" and node.inputs[1] in given:
            x, w = node.inputs[0], given[node.inputs[1]]
            (b, c, h, s), out = x.shape, node.shape[1]
            flat = build.reshape(x, (b, 1, c, h * s))
            return build.reshape(build.matmul(w, flat), (b, out, h, s))
        return node

    graph = rebuilt(lowered.graph, change)
    return attrs.evolve(lowered, graph=graph, inputs=sources)


def _port(shape: Shape4) -> Shape4:
    """The shape of an input for a constant: what is long comes last, as surfaces like it."""
    return (1, 1, *shape[:2]) if shape[2:] == (1, 1) else shape
