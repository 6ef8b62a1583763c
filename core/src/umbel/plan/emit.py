"""Writes the placed graph: every node where it was placed and in the form that was claimed,
with casts where dtypes differ. The model's graph is never changed.

Where the user has named several devices of one backend first, each holds and multiplies a share
of the rows of large matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from umbel.gguf.quants import quantise
from umbel.gguf.types import DType
from umbel.graph import Builder, Graph, Role, Tensor
from umbel.plan.memory import Target
from umbel.plan.place import FLOATS, Placer, local_dtype

LEAST = 1 << 20  # values of a matrix that is worth a copy of its input and its results


@attrs.frozen(eq=False)
class Placed:
    """One node of the placed graph."""

    node: Tensor
    target: Target
    origin: str  # the label of the model's node it comes from
    reason: str  # why there and in this form


@attrs.frozen(eq=False)
class RowWrite:
    """Rows that the plan writes into a state after the step."""

    state: Tensor
    rows: Tensor
    ids: str  # the input that says where they go


@attrs.frozen(eq=False)
class Placement:
    """The placed graph: nodes in order, the outputs asked for, writes left to the plan."""

    nodes: tuple[Placed, ...]
    outputs: tuple[Tensor, ...]
    row_writes: tuple[RowWrite, ...]
    refusals: Mapping[str, str]  # "node on device" -> why not


def place(graph: Graph, placer: Placer, homes: Mapping[str, Target]) -> Placement:
    """Places `graph`; `homes` are those of the states that have one."""
    return _Emitter(graph, placer, homes).placement(graph.outputs)


class _Emitter:
    def __init__(self, graph: Graph, placer: Placer, homes: Mapping[str, Target]) -> None:
        self.placer = placer
        self.homes = placer.homes([graph], homes)
        self.chosen = placer.choose(graph, self.homes)
        self.builder = Builder(placer.ops)
        self.placed: list[Placed] = []
        self.row_writes: list[RowWrite] = []
        self.values: dict[Tensor, Tensor] = {}  # of the model's nodes and their pieces
        self.origin, self.reason = "", ""
        self._leaves: dict[tuple[object, ...], Tensor] = {}

    def placement(self, outputs: Iterable[Tensor]) -> Placement:
        for node, (target, why) in self.chosen.items():
            form = self.placer.judge(node, target).reason
            self.origin = node.name or node.label
            self.reason = "; ".join(filter(None, (why, form))) or "runs there"
            self._node(node, target)
        wanted = [t for t in outputs if t.op is None or not t.op.writes]
        readable = tuple(self.readable(t, self.home(t)) for t in wanted)
        nodes, writes = tuple(self.placed), tuple(self.row_writes)
        return Placement(nodes, readable, writes, dict(self.placer.refusals))

    def home(self, t: Tensor) -> Target:
        """The device in whose memory the model's tensor lies."""
        if t.storage in self.chosen:
            return self.chosen[t.storage][0]
        return self.homes.get(t.storage.name, self.placer.targets[-1])

    def readable(self, t: Tensor, target: Target) -> Tensor:
        """As the host reads it after the step: computed, and without gaps."""
        made = self.local(t, target)
        if made.storage.role is not Role.NODE or not made.is_contiguous:
            made = self._apply("cont", target, "to be read", made)
        return made

    def _node(self, node: Tensor, target: Target, *, whole: bool = True) -> None:
        form = self.placer.judge(node, target, whole=whole).form
        parts = _shares(node, self.placer) if target is self.placer.targets[0] else []
        if parts:
            self._by_rows(node, parts)
            return
        if not form:
            self._as_it_is(node, target)
            return
        pieces, result = self.placer.expand(node, target, form)
        for piece in pieces:
            self._node(piece, target, whole=False)
        for state, rows, ids in result.writes:
            local = self.readable(rows, target)
            self.row_writes.append(RowWrite(self.local(state, target), local, ids.name))
        self.values[node] = self.local(result.result, target)

    def _by_rows(self, node: Tensor, parts: list[tuple[Target, Tensor]]) -> None:
        """Every device computes its share; the first one joins them, or else the host."""
        self.reason = f"rows cut over {', '.join(t.name for t, _ in parts)}"
        for target, part in parts:
            self._as_it_is(part, target)
        first, joined = parts[0]
        for _, part in parts[1:]:
            joined = Builder(self.placer.ops).concat(joined, part, axis=len(part.shape) - 1)
            claimed = self.placer.judge(joined, first).form is not None
            self._as_it_is(joined, first if claimed else self.placer.targets[-1])
        self.values[node] = self.values[joined]

    def _as_it_is(self, node: Tensor, target: Target) -> None:
        assert node.op is not None
        inputs = [self.local(t, target) for t in node.inputs]
        stored = None if node.op.writes else local_dtype(node, target)
        named = {"name": node.name or self.origin, "stored_as": stored, **node.attrs}
        self.values[node] = self._apply(node.op.name, target, self.reason, *inputs, **named)

    def _apply(
        self, op: str, target: Target, reason: str, *inputs: Tensor, **attributes: Any
    ) -> Tensor:
        """The result of an operation; noted as placed unless it was there before."""
        before = len(self.builder.nodes)
        made = self.builder.apply(self.placer.ops[op], *inputs, **attributes)
        if len(self.builder.nodes) > before:
            self.placed.append(Placed(made, target, self.origin, reason))
        return made

    def local(self, t: Tensor, target: Target) -> Tensor:
        """The placed graph's tensor for `t` as it is used on `target`."""
        dtype = local_dtype(t, target)
        if t in self.values:
            return self._cast(self.values[t], dtype)
        if t.op is None:
            return self._leaf(t, dtype)
        source = self.local(t.inputs[0], target)
        return self.builder.apply(t.op, source, name=t.name, **t.attrs)

    def _leaf(self, t: Tensor, dtype: DType) -> Tensor:
        """The leaf itself, or what its memory holds on a device that wants another dtype."""
        content = t.name if t.data is None else (t.shape, t.dtype, t.data.tobytes())
        key = (t.role, content, dtype)
        if key not in self._leaves:
            data = t.data
            if data is not None and dtype is not t.dtype:
                data = quantise(data, dtype)
            self._leaves[key] = attrs.evolve(t, dtype=dtype, strides=(), data=data)
        return self._leaves[key]

    def _cast(self, t: Tensor, dtype: DType) -> Tensor:
        """Casts are the host's work: it computes in every dtype."""
        if t.dtype is dtype or t.dtype not in FLOATS or t.storage.role is Role.STATE:
            return t
        reason = f"{t.dtype} to {dtype}"
        return self._apply(
            "cast", self.placer.targets[-1], reason, t, name=t.name, dtype=dtype.name
        )


def _shares(node: Tensor, placer: Placer) -> list[tuple[Target, Tensor]]:
    """The parts of a matrix product and who computes them; none where it stays whole."""
    backend = placer.targets[0].device.backend
    together = itertools.takewhile(lambda t: t.device.backend == backend, placer.targets[:-1])
    targets, w = list(together), node.inputs[0]
    large = w.role is Role.WEIGHT and len(w.shape) == 2 and w.size >= LEAST
    if len(targets) < 2 or not large or node.op is not placer.ops["mul_mat"]:
        return []
    cuts = [w.shape[0] * i // len(targets) for i in range(len(targets) + 1)]
    parts = [_part(node, *span) for span in itertools.pairwise(cuts)]
    pairs = list(zip(targets, parts, strict=True))
    return pairs if all(placer.judge(p, t).form == "" for t, p in pairs) else []


def _part(node: Tensor, start: int, stop: int) -> Tensor:
    w, x = node.inputs
    where = {"of": w.name, "rows": slice(start, stop)}
    rows = Tensor(
        (stop - start, w.shape[1]), w.dtype, w.role, f"{w.name}[{start}:{stop}]", attrs=where
    )
    shape = (*node.shape[:-1], stop - start)
    return attrs.evolve(node, shape=shape, inputs=(rows, x), strides=())
