"""Fills the ports of a lowered graph from the core's arrays, and reads its outputs back.

Written from what `compiler/ports.py` says of them, without the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from umbel.gguf.types import I32
from umbel.graph import Graph, Tensor
from umbel_ane.compiler import ir
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.lowering import Options, lower
from umbel_ane.compiler.ports import OneHot, Rows, Whole
from umbel_ane.compiler.reference import evaluate
from umbel_ane.profile import Profile

Arrays = Mapping[Tensor, np.ndarray]
PROFILE = Profile(name="test", description="padded as far as any", spatial_multiple=16)
EXACT = attrs.evolve(PROFILE, spatial_multiple=1, inner_multiple=1)
STRANGE = attrs.evolve(PROFILE, inner_multiple=32)


@attrs.frozen
class Split:
    nodes: Sequence[Tensor]
    outputs: Sequence[Tensor]


def weight_of(arrays: Arrays) -> object:
    def of(t: Tensor) -> ir.Weight:
        return ir.Weight(t.name, lambda: np.asarray(arrays[t], np.float16))

    return of


def viewed(t: Tensor, arrays: Arrays) -> np.ndarray:
    """The values of a leaf or of a view of one."""
    if t in arrays:
        return arrays[t]
    if t.data is not None:
        return t.data
    assert t.op is not None
    return t.op.reference(viewed(t.inputs[0], arrays), **t.attrs)


def filled(lowered: Lowered, arrays: Arrays) -> dict[str, np.ndarray]:
    shapes = {node.name: node.shape for node in lowered.graph.inputs()}
    assert shapes.keys() == lowered.inputs.keys()
    return {n: _filled(lowered.inputs[n], shapes[n], arrays) for n in shapes}


def _filled(source: object, shape: Sequence[int], arrays: Arrays) -> np.ndarray:
    if isinstance(source, Whole):
        values = arrays[source.tensor]
    elif isinstance(source, Rows):
        values = arrays[source.tensor][viewed(source.ids, arrays)]
    else:
        assert isinstance(source, OneHot)
        values = np.eye(source.n)[viewed(source.ids, arrays).reshape(-1)]
    turned = np.asarray(values, np.float32).transpose(source.axes)
    rows = math.prod(shape[:3])
    assert turned.size % rows == 0
    out = np.zeros(shape, np.float32)
    flat = turned.reshape(rows, -1)
    out.reshape(rows, shape[3])[:, : flat.shape[1]] = flat
    return out


def emptied(whole: Whole, value: np.ndarray) -> np.ndarray:
    t = whole.tensor
    rows = math.prod(value.shape[:3])
    kept = value.reshape(rows, value.shape[3])[:, : t.size // rows]
    turned = kept.reshape([t.shape[a] for a in whole.axes])
    return turned.transpose(np.argsort(whole.axes))


def computed(lowered: Lowered, arrays: Arrays, mode: str) -> dict[Tensor, np.ndarray]:
    made = evaluate(lowered.graph, filled(lowered, arrays), mode)  # type: ignore[arg-type]
    return {w.tensor: emptied(w, made[n]) for n, w in lowered.outputs.items()}


def lowered_graph(
    graph: Graph, arrays: Arrays, profile: Profile = PROFILE, options: Options | None = None
) -> Lowered:
    nodes = [n for n in graph.nodes if n.op and not n.op.view]
    outputs = list(dict.fromkeys(t.storage for t in graph.outputs))
    return lower(Split(nodes, outputs), profile, weight_of(arrays), options)  # type: ignore


def truth(graph: Graph, arrays: Arrays) -> dict[Tensor, np.ndarray]:
    """Every node by its reference, in float32."""
    known: dict[Tensor, np.ndarray] = dict(arrays)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            assert node.op is not None
            given = [known[t] if t.data is None else t.data for t in node.inputs]
            exact = [np.asarray(g, np.float32 if g.dtype.kind == "f" else None) for g in given]
            known[node] = np.asarray(node.op.reference(*exact, **node.attrs))
    return known


def draw(graph: Graph, seed: int = 0) -> dict[Tensor, np.ndarray]:
    """Random values for the float leaves, as float16 holds them."""
    rng = np.random.default_rng(seed)
    leaves = {t for n in graph.nodes for t in n.inputs if t.op is None and t.data is None}
    ordered = sorted(leaves, key=lambda t: t.name)
    return {
        t: rng.standard_normal(t.shape).astype(np.float16).astype(np.float32)
        for t in ordered
        if t.dtype is not I32
    }
