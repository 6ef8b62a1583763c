"""What lowering gives: one graph for a whole split, and what fills and empties its ports."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from umbel_ane.compiler.ir import Graph
from umbel_ane.compiler.ports import Source, Whole


@attrs.frozen(eq=False)
class Lowered:
    """`inputs`: by the name of each input node of the graph; `outputs`: by the graph's own
    names, each a tensor's storage and the order in which its axes lie in the value."""

    graph: Graph
    inputs: Mapping[str, Source]
    outputs: Mapping[str, Whole]
