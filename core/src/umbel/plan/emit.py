"""Writes the placed graph: every node where it was placed and in the form that was claimed,
with casts where dtypes differ. The model's graph is never changed.

Where the user has named several devices of one backend first and wants rows split, each holds
and multiplies a share of the rows of large matrices.
"""

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from umbel.gguf.types import DType, quantise
from umbel.graph import Builder, Graph, Role, RowWrite, Tensor
from umbel.plan.memory import Target
from umbel.plan.place import Placer, local_dtype
from umbel.plan.stages import named_first

LEAST = 1 << 20  # values of a matrix that is worth a copy of its input and its results


@attrs.frozen(eq=False)
class Placed:
    """One node of the placed graph."""

    node: Tensor
    target: Target
    origin: str  # the label of the model's node it comes from
    reason: str  # why there and in this form
    ahead: bool = False  # the host prepares it, for a device that takes what follows from it


@attrs.frozen(eq=False)
class Placement:
    """The placed graph: nodes in order, the outputs asked for, writes left to the plan."""

    nodes: tuple[Placed, ...]
    outputs: tuple[Tensor, ...]
    row_writes: tuple[RowWrite, ...]


def place(graph: Graph, placer: Placer, homes: Mapping[str, Target]) -> Placement:
    """Places `graph`; `homes` are those of the states that have one."""
    return _Emitter(graph, placer, homes).placement(graph.outputs)


class _Emitter:
    def __init__(self, graph: Graph, placer: Placer, homes: Mapping[str, Target]) -> None:
        self.placer = placer
        self.homes = placer.homes([graph], homes)
        self.chosen = placer.choose(graph, self.homes)
        self.builder = Builder(placer.ops)
        devices = [] if placer.layers else named_first(placer.targets)
        self.sharers = devices if len(devices) > 1 else []
        self.placed: dict[Tensor, Placed] = {}
        self.row_writes: list[RowWrite] = []
        self.values: dict[Tensor, Tensor] = {}  # of the model's nodes and their pieces
        self.origin, self.reason, self.ahead = "", "", False
        self._leaves: dict[Hashable, Tensor] = {}

    def placement(self, outputs: Iterable[Tensor]) -> Placement:
        for node, (target, why) in self.chosen.items():
            form = self.placer.judge(node, target).reason
            self.origin = node.label
            self.reason = "; ".join(filter(None, (why, form))) or "runs there"
            self._node(node, target)
        wanted = [t for t in outputs if t.op is None or not t.op.writes]
        readable = tuple(self.readable(t, self.home(t)) for t in wanted)
        first = sorted(self.placed.values(), key=lambda placed: not placed.ahead)
        return Placement(tuple(first), readable, tuple(self.row_writes))

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

    def _node(self, node: Tensor, target: Target) -> None:
        shared = self.sharers and target is self.sharers[0]
        if shared and (parts := _shares(node, self.placer, self.sharers)):
            self._by_rows(node, parts)
        elif form := self.placer.judge(node, target).form:
            self._in_pieces(node, target, form)
        else:
            self._as_it_is(node, target)

    def _in_pieces(self, node: Tensor, target: Target, form: str) -> None:
        pieces, result = self.placer.expand(node, target, form)
        for piece in pieces:
            self.ahead = self.placer.place_of(piece, target) is not target
            self._node(piece, self.placer.targets[-1] if self.ahead else target)
        self.ahead = False
        for state, rows, ids in result.writes:
            write = self.local(state, target), self.readable(rows, target), ids
            self.row_writes.append(write)
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
        inputs = tuple(self.local(t, target) for t in node.inputs)
        stored, name = local_dtype(node, target), node.name or self.origin
        if inputs == node.inputs and stored is node.dtype and name == node.label:
            made = self._note(self.builder.keep(node), target, self.reason)
        else:
            named = {"name": name, "stored_as": stored, **node.attrs}
            made = self._apply(node.op.name, target, self.reason, *inputs, **named)
        self.values[node] = made

    def _apply(
        self, op: str, target: Target, reason: str, *inputs: Tensor, **attributes: Any
    ) -> Tensor:
        """The result of an operation; noted as placed unless it was there before."""
        made = self.builder.apply(self.placer.ops[op], *inputs, **attributes)
        return self._note(made, target, reason)

    def _note(self, made: Tensor, target: Target, reason: str) -> Tensor:
        self.placed.setdefault(made, Placed(made, target, self.origin, reason, self.ahead))
        return made

    def local(self, t: Tensor, target: Target) -> Tensor:
        """The placed graph's tensor for `t` as it is used on `target`."""
        dtype = local_dtype(t, target)
        if t in self.values:
            made = self.values[t]
        elif t.op is None:
            made = self._leaf(t, dtype)
        else:
            source, build = self.local(t.inputs[0], target), self.builder
            same = source is t.inputs[0]
            made = build.keep(t) if same else build.apply(t.op, source, name=t.name, **t.attrs)
        if made.dtype is dtype:
            return made
        # casts are the host's work: it computes in every dtype
        host, reason = self.placer.targets[-1], f"{made.dtype} to {dtype}"
        return self._apply("cast", host, reason, made, name=made.name, dtype=dtype.name)

    def _leaf(self, t: Tensor, dtype: DType) -> Tensor:
        """The leaf itself, or what its memory holds on a device that wants another dtype."""
        local = t
        if dtype is not t.dtype:
            data = None if t.data is None else quantise(t.data, dtype)
            local = attrs.evolve(t, dtype=dtype, strides=(), data=data)
        return self._leaves.setdefault((t.role, dtype, local.content), local)


def _shares(
    node: Tensor, placer: Placer, targets: Sequence[Target]
) -> list[tuple[Target, Tensor]]:
    """The parts of a matrix product and who computes them; none where it stays whole."""
    w = node.inputs[0]
    large = w.role is Role.WEIGHT and len(w.shape) == 2 and w.size >= LEAST
    if not large or node.op is not placer.ops["mul_mat"]:
        return []
    cuts = [w.shape[0] * i // len(targets) for i in range(len(targets) + 1)]
    parts = [_part(node, *span) for span in itertools.pairwise(cuts)]
    pairs = list(zip(targets, parts, strict=True))
    return pairs if all(placer.judge(p, t).form == "" for t, p in pairs) else []


def _part(node: Tensor, start: int, stop: int) -> Tensor:
    w, x = node.inputs
    name, where = f"{w.name}[{start}:{stop}]", {"of": w.name, "rows": slice(start, stop)}
    rows = attrs.evolve(w, shape=(stop - start, w.shape[1]), name=name, attrs=where)
    shape = (*node.shape[:-1], stop - start)
    return attrs.evolve(node, shape=shape, inputs=(rows, x), strides=())
