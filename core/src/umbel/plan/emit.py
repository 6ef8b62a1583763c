"""Writes the placed graph: every node where it was placed and in the form that was claimed,
with casts where dtypes differ. The model's graph is never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from umbel.gguf.quants import quantise
from umbel.gguf.types import DType
from umbel.graph import Builder, Graph, Role, Tensor
from umbel.plan.place import FLOATS, Choice, Placer, local_dtype, result_dtype
from umbel.plan.rows import join, shares
from umbel.plan.target import Target


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
    homes = placer.homes([graph], homes)
    emitter = _Emitter(placer, homes, placer.choose(graph, homes))
    emitter.emit()
    wanted = [t for t in graph.outputs if t.op is None or not t.op.writes]
    outputs = tuple(emitter.readable(t, emitter.home(t)) for t in wanted)
    nodes, writes = tuple(emitter.placed), tuple(emitter.row_writes)
    return Placement(nodes, outputs, writes, dict(placer.refusals))


class _Emitter:
    def __init__(
        self, placer: Placer, homes: Mapping[str, Target], chosen: Mapping[Tensor, Choice]
    ) -> None:
        self.placer, self.homes, self.chosen = placer, homes, chosen
        self.builder = Builder(placer.ops)
        self.placed: list[Placed] = []
        self.row_writes: list[RowWrite] = []
        self.values: dict[Tensor, Tensor] = {}  # of the model's nodes and their pieces
        self.origin, self.reason = "", ""
        self._leaves: dict[tuple[object, ...], Tensor] = {}

    def emit(self) -> None:
        for node, choice in self.chosen.items():
            form = self.placer.judge(node, choice.target).reason
            self.origin = node.name or node.label
            self.reason = "; ".join(filter(None, (choice.why, form))) or "runs there"
            self._node(node, choice.target)

    def home(self, t: Tensor) -> Target:
        """The device in whose memory the model's tensor lies."""
        choice = self.chosen.get(t.storage)
        last = self.placer.targets[-1]
        return choice.target if choice else self.homes.get(t.storage.name, last)

    def readable(self, t: Tensor, target: Target) -> Tensor:
        """As the host reads it after the step: computed, and without gaps."""
        made = self.local(t, target)
        if made.storage.role is not Role.NODE or not made.is_contiguous:
            made = self._apply("cont", target, "to be read", made)
        return made

    def _node(self, node: Tensor, target: Target, *, whole: bool = True) -> None:
        form = self.placer.judge(node, target, whole=whole).form
        parts = shares(node, self.placer) if target is self.placer.targets[0] else []
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
        self.reason = f"rows cut over {', '.join(t.name for t, _ in parts)}"
        for target, part in parts:
            self._as_it_is(part, target)
        nodes, target = join([part for _, part in parts], self.placer)
        for joined in nodes:
            self._as_it_is(joined, target)
        self.values[node] = self.values[nodes[-1]]

    def _as_it_is(self, node: Tensor, target: Target) -> None:
        assert node.op is not None
        inputs = [self.local(t, target) for t in node.inputs]
        stored = None if node.op.writes else result_dtype(node, target)
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
