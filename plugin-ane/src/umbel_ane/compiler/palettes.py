"""Weights as palettes: 4-bit or 8-bit indices into tables of float16 values.

A second lossy step, after whatever quantisation the model file has: its blocks have scales of
their own, which one table for many channels cannot keep. So it is done on request only, with
a table for every few output channels, found by k-means in one dimension (Lloyd's). Where
a group has no more different values than its table has entries, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from umbel.errors import OptionError

from umbel_ane.compiler.ir import FP16, Graph, Node, Palette, Weight, rebuilt

BITS: Mapping[str, int] = {"palette4": 4, "palette8": 8}
CHOICES = ("fp16", *BITS)
CHANNELS = 16  # output channels that share a table, at most
SMALLEST = 1 << 14  # weights of fewer values stay as they are: the tables would cost as much
ROUNDS = 20


def palettised(graph: Graph, choice: str) -> Graph:
    """The graph with the weights of its convolutions as palettes; "fp16": as it is."""
    if choice not in CHOICES:
        msg = "there is no such form of weights"
        raise OptionError(msg, where="weights", expected=", ".join(CHOICES), got=choice)
    if choice not in BITS:
        return graph
    wanted = {n.inputs[1] for n in graph.nodes() if n.op == "conv1x1"}

    def change(node: Node) -> Node:
        if node not in wanted or node.weight is None or node.weight.palette is not None:
            return node
        if node.size < SMALLEST or node.dtype != FP16:
            return node
        return attrs.evolve(node, weight=with_palette(node, node.weight, BITS[choice]))

    return rebuilt(graph, change)


def with_palette(node: Node, weight: Weight, bits: int) -> Weight:
    """The weight with values of a palette, which is computed once, when it is first read."""
    channels = node.shape[0]
    share = next(n for n in range(CHANNELS, 0, -1) if channels % n == 0)
    groups = channels // share
    known: list[tuple[np.ndarray, np.ndarray]] = []

    def read() -> tuple[np.ndarray, np.ndarray]:
        if not known:
            values = np.asarray(weight.read(), np.float32).reshape(groups, -1)
            indices, tables = zip(*(table_of(v, bits) for v in values), strict=True)
            known.append((np.stack(indices).reshape(node.shape), np.stack(tables)))
        return known[0]

    def values() -> np.ndarray:
        indices, tables = read()
        rows = indices.reshape(groups, -1).astype(np.intp)
        return np.take_along_axis(tables, rows, 1).reshape(node.shape)

    key = "palette", bits, groups, weight.key
    return Weight(key, values, Palette(bits, groups, read))


def table_of(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of values into a rising table of 2^bits float16 values."""
    size = 1 << bits
    ordered = np.sort(values.reshape(-1))
    exact = np.unique(ordered.astype(np.float16))
    if len(exact) <= size:
        table = np.pad(exact, (0, size - len(exact)), mode="edge")
    else:
        table = _means(ordered, size).astype(np.float16)
    edges = table.astype(np.float32)
    indices = np.searchsorted((edges[1:] + edges[:-1]) / 2, values.reshape(-1), side="left")
    return indices.astype(np.uint8), table


def _means(ordered: np.ndarray, size: int) -> np.ndarray:
    """Lloyd's k-means over sorted values: each round by sums up to each boundary."""
    n = len(ordered)
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    means = _spread(ordered, size)
    for _ in range(ROUNDS):
        cuts = np.searchsorted(ordered, (means[1:] + means[:-1]) / 2)
        cuts = np.concatenate([[0], cuts, [n]])
        counts = np.diff(cuts)
        found = np.diff(sums[cuts]) / np.maximum(counts, 1)
        means = np.sort(np.where(counts, found, means))
    return means


def _spread(ordered: np.ndarray, size: int) -> np.ndarray:
    """Where to begin: as dense as the cube root of the values' density, which is what the best
    table of many entries tends to (Bennett; Panter and Dite)."""
    points = ordered[np.linspace(0, len(ordered) - 1, 8 * size + 1).astype(np.intp)]
    steps = np.cumsum(np.diff(points.astype(np.float64)) ** (2 / 3))
    wanted = (np.arange(size) + 0.5) / size * steps[-1]
    means: np.ndarray = np.interp(wanted, np.concatenate([[0.0], steps]), points)
    return means


def error(node: Node, weight: Weight) -> float:
    """What a palette loses of a constant: squared error over squared values."""
    exact = np.asarray(weight.read(), np.float32).reshape(node.shape)
    stored = np.asarray(node.weight.read() if node.weight else exact, np.float32)
    size = float(np.square(exact).sum())
    return float(np.square(stored.reshape(node.shape) - exact).sum()) / (size or 1.0)
