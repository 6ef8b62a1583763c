"""Cast fusion: a cast of a cast is one cast, or none, where no bit is lost on the way.

fp16 -> fp32 -> fp16 gives the same values back; fp32 -> fp16 -> fp32 does not and stays. Moves
between the two casts are done on the uncast value, which halves what they move.
"""

from __future__ import annotations

import attrs

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import FP16, FP32, MOVES, Graph, Node, rebuilt

EXACT = {(FP16, FP32)}  # every value of the first is one of the second


def casts(graph: Graph) -> Graph:
    build = IRBuilder()

    def change(node: Node) -> Node:
        if node.op != "cast":
            return node
        build.name = node.name
        moves, x = [], node.inputs[0]
        while x.op in MOVES:
            moves.append(x)
            x = x.inputs[0]
        if x.op != "cast" or (x.inputs[0].dtype, x.dtype) not in EXACT:
            return node
        made = x.inputs[0]
        for move in reversed(moves):
            made = attrs.evolve(move, inputs=(made,), dtype=made.dtype)
        return made if made.dtype == node.dtype else build.cast(made, node.dtype)

    return rebuilt(graph, change)
