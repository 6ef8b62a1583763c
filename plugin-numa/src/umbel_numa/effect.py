"""Options of several nodes that a model turns out not to heed: a line says so, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from umbel_numa.cut import MATRICES

if TYPE_CHECKING:
    from umbel_numa.placement import Placement
    from umbel_numa.weights import NativeWeight


def without_effect(
    where: Placement, copies: bool, weights: Sequence[NativeWeight]
) -> Iterator[str]:
    """Of a model with these weights; `copies`: each node has one of those that are packed."""
    if len(where.numbers) == 1:  # that was told before there was a model
        return
    cut = [w for w in weights if w.struct is None and len(w.segments) > 1]
    if copies and cut:
        mb = max(1, round(sum(w.nbytes for w in cut) / 1e6))
        told = f"numa.mode=mirror has no effect on {mb} MB of weights"
        yield f"{told}: they are not packed, and distributed"
    if where.experts != "whole":
        return
    experts = [w for w in weights if len(w.tensor.shape) == 3]
    left = [w for w in experts if w.struct is None or w.struct["split"][0] != MATRICES]
    if not experts:
        yield "numa.experts=whole has no effect: no weight is of experts"
    for why, count in Counter(_why(w, copies, len(where.numbers)) for w in left).items():
        yield f"numa.experts=whole has no effect on {count} of {len(experts)} weights: {why}"


def _why(weight: NativeWeight, copies: bool, nodes: int) -> str:
    if weight.struct is None:
        return "what is not packed goes by rows"
    if copies:
        return "each node has a copy"
    return f"fewer experts ({weight.tensor.shape[0]}) than nodes ({nodes})"
