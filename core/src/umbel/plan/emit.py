"""Writes the placed graph: claims become nodes, values are cast where dtypes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.errors import DeviceError
from umbel.gguf.types import DType
from umbel.graph import Builder, Graph, Operation, Role, Tensor
from umbel.plan.place import (
    FLOATS,
    Placed,
    Placement,
    Placer,
    RowWrite,
    constant_as,
    local_dtype,
    result_dtype,
)
from umbel.plan.target import Target


def place(
    graph: Graph,
    targets: Sequence[Target],
    ops: Mapping[str, Operation],
    homes: Mapping[str, Target] | None = None,
    placer: Placer | None = None,
) -> Placement:
    """Places `graph` on `targets` (in order of preference, the last one takes everything)."""
    placer = placer or Placer(targets, ops)
    chosen = placer.choose(graph, homes or {})
    emitter = _Emitter(placer, ops)
    for node in graph.nodes:
        if node in chosen:
            emitter.emit(node, chosen[node])
    host = targets[-1]
    outputs = tuple(emitter.output(t, host) for t in graph.outputs if not _is_effect(t))
    effects = tuple(emitter.effects)
    return Placement(
        tuple(emitter.placed),
        outputs + effects,
        tuple(emitter.row_writes),
        placer.homes([graph], homes),
        dict(placer.refusals),
    )


def _is_effect(t: Tensor) -> bool:
    return t.op is not None and t.op.writes


class _Emitter:
    def __init__(self, placer: Placer, ops: Mapping[str, Operation]) -> None:
        self.placer = placer
        self.builder = Builder(ops)
        self.placed: list[Placed] = []
        self.effects: dict[Tensor, None] = {}
        self.row_writes: list[RowWrite] = []
        self.values: dict[Tensor, Tensor] = {}  # of the model's nodes and pieces
        self.casts = placer.targets[-1]
        self._leaves: dict[tuple[Role, str, str], Tensor] = {}
        self._count = 0

    def emit(self, node: Tensor, target: Target) -> None:
        claim = self.placer.claim(node, target)
        if isinstance(claim, str):
            msg = f"{node.label} cannot run on {target.name}"
            raise DeviceError(msg, got=claim)
        for piece in claim.pieces:
            if piece.op is None:  # an alias
                node_, result = piece.inputs
                self.values[node_] = self.local(result, target)
            else:
                self._piece(piece, target, node, claim.reason)
        if claim.result is not node:
            self.values[node] = self.local(claim.result, target)
        for state, rows, ids in claim.writes:
            local = self.local(rows, target)
            ids_ = self.local(ids, self.casts)
            self.row_writes.append(RowWrite(self.local(state, target), local, ids_))

    def _piece(self, piece: Tensor, target: Target, origin: Tensor, reason: str) -> None:
        assert piece.op is not None
        inputs = [self.local(t, target) for t in piece.inputs]
        stored = None if piece.op.writes else result_dtype(piece, target)
        name = piece.name or origin.name
        made = self.builder.apply(piece.op, *inputs, name=name, stored_as=stored, **piece.attrs)
        self.values[piece] = made
        if made.op is not None and made.op.writes:
            self.effects[made] = None
        self._collect(target, origin.label, reason)

    def local(self, t: Tensor, target: Target) -> Tensor:
        """The placed graph's tensor for `t` as it is used on `target`."""
        if t.op is not None and t.op.view and t not in self.values:
            source = self.local(t.inputs[0], target)
            made = self.builder.apply(t.op, source, name=t.name, **t.attrs)
            self._collect(target, t.label, "a view")
            return made
        if t.op is None and t not in self.values:
            return self._leaf(t, target)
        return self._cast(self.values[t], local_dtype(t, target))

    def _leaf(self, t: Tensor, target: Target) -> Tensor:
        dtype = local_dtype(t, target)
        if t.role is Role.CONST:
            return t if dtype is t.dtype else self._const(t, dtype)
        if t.role is Role.INPUT:
            return self._cast(t, dtype)
        key = (t.role, t.name, dtype.name)
        if key not in self._leaves:
            same = dtype is t.dtype
            self._leaves[key] = t if same else Tensor(t.shape, dtype, t.role, t.name)
        return self._leaves[key]

    def _const(self, t: Tensor, dtype: DType) -> Tensor:
        key = (Role.CONST, str(id(t)), dtype.name)
        if key not in self._leaves:
            self._leaves[key] = constant_as(t, dtype)
        return self._leaves[key]

    def _cast(self, t: Tensor, dtype: DType) -> Tensor:
        if t.dtype is dtype or t.dtype not in FLOATS or t.storage.role is Role.STATE:
            return t
        made = self.builder.apply(self.builder.ops["cast"], t, dtype=dtype.name)
        self._collect(self.casts, made.label, f"{t.dtype} to {dtype}")
        return made

    def output(self, t: Tensor, host: Target) -> Tensor:
        """An output as the host reads it: float32, contiguous, in memory of its own."""
        made = self.local(t, host)
        if made.base is not None or made.op is None:
            made = self.builder.apply(self.builder.ops["cont"], made)
            self._collect(host, t.label, "an output")
        return made

    def _collect(self, target: Target, origin: str, reason: str) -> None:
        """Notes the target of the nodes that the builder has made since the last time."""
        for node in self.builder.nodes[self._count :]:
            if node.op is not None and not node.op.view:
                self.placed.append(Placed(node, target, origin, reason))
        self._count = len(self.builder.nodes)
