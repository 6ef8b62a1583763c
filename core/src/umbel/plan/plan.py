"""A plan: everything about one step shape decided once, so that a step only runs.

Made by `make`; immutable; every tensor keeps its address, so that a backend compiles a split
once. A step writes the inputs, calls `graph_compute` once per split, waits, and reads what was
asked for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from umbel.errors import DeviceError, GraphError
from umbel.gguf.quants import dequantise, quantise
from umbel.gguf.types import DType
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.plan.allocate import Copy, Layout, allocate
from umbel.plan.emit import place
from umbel.plan.memory import Arenas, States, Weights
from umbel.plan.place import Placement, Placer, RowWrite
from umbel.plan.split import Split, cut
from umbel.plan.target import Target

_uids = itertools.count(1)


@attrs.frozen(eq=False)
class Step:
    """One split, ready: its graph with addresses, the copies before it, whom it waits for."""

    target: Target
    graph: SplitGraph
    copies: tuple[tuple[Slot, Slot, int], ...]
    waits: tuple[Target, ...]


@attrs.frozen(eq=False)
class Plan:
    placement: Placement
    splits: tuple[Split, ...]
    layout: Layout
    steps: tuple[Step, ...]
    inputs: Mapping[str, tuple[Tensor, tuple[Slot, ...]]]  # name -> where its values go
    outputs: tuple[tuple[Tensor, Slot], ...]
    row_writes: tuple[tuple[RowWrite, Slot, Slot], ...]
    targets: tuple[Target, ...]
    check: bool = False

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """One step: the arrays of the graph's outputs (writes to state give none).

        Raises what a device raised; with `check`, the error names the node.
        """
        with contextlib.ExitStack() as stack:
            for target in self.targets:
                stack.enter_context(target.lock)
            self._write_inputs(feeds)
            for step in self.steps:
                self._run_step(step)
            for target in self.targets:
                target.sync(target.device)
            for write, rows, state in self.row_writes:
                _write_rows(write, rows, state, feeds)
            return [_read(t, slot) for t, slot in self.outputs]

    def _write_inputs(self, feeds: Mapping[str, np.ndarray]) -> None:
        for name, (tensor, slots) in self.inputs.items():
            given = feeds.get(name)
            if given is None or given.shape != tensor.shape:
                msg = f"input {name!r} of the step is missing or of another shape"
                got = None if given is None else list(given.shape)
                raise GraphError(msg, expected=list(tensor.shape), got=got)
            data = np.ascontiguousarray(given, tensor.dtype.numpy)
            for slot in slots:
                slot.buffer.write(slot.offset, data)

    def _run_step(self, step: Step) -> None:
        for target in step.waits:
            target.sync(target.device)
        for source, destination, nbytes in step.copies:
            buffer, at = destination.buffer, destination.offset
            if not buffer.copy_from(at, source.buffer, source.offset, nbytes):
                buffer.write(at, source.buffer.read(source.offset, nbytes))
        step.target.graph_compute(step.target.device, step.graph)
        if self.check:
            self._check(step)

    def _check(self, step: Step) -> None:
        """Waits for the one node of this step, and looks at its values."""
        node = step.graph.nodes[-1]
        try:
            step.target.sync(step.target.device)
        except DeviceError as error:
            error.what = f"{node.label} on {step.target.name}: {error.what}"
            raise
        if node.op is None or node.op.writes or node.dtype.numpy is None:
            return
        values = _read(node.storage, step.graph.slots[node.storage])
        if not np.isfinite(values).all():
            msg = f"{node.label} on {step.target.name} gave values that are not finite"
            bad = np.argwhere(~np.isfinite(values))[0].tolist()
            raise DeviceError(msg, where=f"shape {list(node.shape)}", got=f"first at {bad}")

    def forget(self) -> None:
        """Lets the devices drop what they compiled for this plan."""
        for step in self.steps:
            step.target.forget(step.target.device, step.graph.uid)


def make(
    graph: Graph,
    targets: Sequence[Target],
    ops: Mapping[str, Operation],
    weights: Weights,
    states: States,
    arenas: Arenas,
    *,
    placer: Placer | None = None,
    check: bool = False,
) -> Plan:
    """Places, splits, allocates and binds `graph`; loads the weights that are not there yet."""
    placement = place(graph, targets, ops, states.homes, placer)
    wanted = [t.storage for t in placement.outputs if not (t.op and t.op.writes)]
    wanted += [w.rows.storage for w in placement.row_writes]
    splits = cut(placement.nodes, wanted, single=check)
    layout = allocate(splits, wanted)
    return _Binder(placement, splits, layout, weights, states, arenas).plan(check)


class _Binder:
    """Turns offsets into slots."""

    def __init__(
        self,
        placement: Placement,
        splits: list[Split],
        layout: Layout,
        weights: Weights,
        states: States,
        arenas: Arenas,
    ) -> None:
        self.placement, self.splits, self.layout = placement, splits, layout
        self.weights, self.states, self.arenas = weights, states, arenas
        self.targets = {s.target.name: s.target for s in splits}
        self.buffers = {
            name: arenas.buffer(self.targets[name], size) for name, size in layout.sizes.items()
        }
        self.slots: dict[tuple[str, Tensor], Slot] = {}

    def slot(self, target: Target, t: Tensor) -> Slot:
        if t.role in (Role.WEIGHT, Role.CONST):
            return self.weights.slot(t, target)
        if t.role is Role.STATE:
            return self.states.slots[t.name]
        owner = self.layout.owners[target.name, t]
        key = (owner.name, t)
        if key not in self.slots:
            kind = owner.buffer_type
            if kind.separate:
                self.slots[key] = Slot(kind.allocate(kind.alloc_size(t), "compute"))
            else:
                self.slots[key] = Slot(self.buffers[owner.name], self.layout.offsets[key])
        return self.slots[key]

    def plan(self, check: bool) -> Plan:
        steps = tuple(map(self._step, self.splits, self.layout.copies))
        made = {t.storage: s.target for s in self.splits for t in s.outputs}
        inputs: dict[str, tuple[Tensor, tuple[Slot, ...]]] = {}
        for split in self.splits:
            for t in split.inputs:
                if t.role is Role.INPUT:
                    tensor, slots = inputs.get(t.name, (t, ()))
                    slot = self.slot(split.target, t)
                    inputs[t.name] = (tensor, slots if slot in slots else (*slots, slot))
        return Plan(
            placement=self.placement,
            splits=tuple(self.splits),
            layout=self.layout,
            steps=steps,
            inputs=inputs,
            outputs=tuple(
                (t, self.slot(made[t.storage], t.storage))
                for t in self.placement.outputs
                if not (t.op and t.op.writes)
            ),
            row_writes=tuple(
                (w, self.slot(made[w.rows.storage], w.rows.storage), self._state(w.state))
                for w in self.placement.row_writes
            ),
            targets=tuple(self.targets.values()),
            check=check,
        )

    def _state(self, t: Tensor) -> Slot:
        return self.states.slots[t.storage.name]

    def _step(self, split: Split, copies: Sequence[Copy]) -> Step:
        known = {t.storage for n in split.nodes for t in (*n.inputs, n)}
        if split.target.info.opaque:
            known = {t.storage for t in split.inputs + split.outputs}
        slots = {t: self.slot(split.target, t) for t in known}
        graph = SplitGraph(next(_uids), split.nodes, split.inputs, split.outputs, slots)
        shared = {
            self.layout.owners[split.target.name, t]
            for t in split.inputs
            if (split.target.name, t) in self.layout.owners
        }
        moves = tuple(
            (self.slot(c.source, c.tensor), self.slot(c.destination, c.tensor), c.tensor.nbytes)
            for c in copies
        )
        waits = tuple(t for t in shared if t is not split.target)
        return Step(split.target, graph, moves, waits)


def _read(t: Tensor, slot: Slot) -> np.ndarray:
    """The values of a contiguous tensor, a copy."""
    raw = slot.buffer.read(slot.offset, t.nbytes)
    if t.dtype.numpy is None:
        rows = raw.reshape(*t.shape[:-1], t.dtype.row_bytes(t.shape[-1]))
        return dequantise(rows, t.dtype)
    return raw.view(t.dtype.numpy).reshape(t.shape)


def _write_rows(
    write: RowWrite, rows: Slot, state: Slot, feeds: Mapping[str, np.ndarray]
) -> None:
    """What a device that cannot scatter left to do: new rows go into the state."""
    where = feeds[write.ids.storage.name].reshape(-1)
    values = _read(write.rows, rows).astype(np.float32).reshape(len(where), -1)
    data = as_stored(values, write.state.storage.dtype)
    for row, at in zip(data, where, strict=True):
        state.buffer.write(state.offset + int(at) * data.shape[1], row)


def as_stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 (n, row) -> (n, row bytes) uint8"""
    if dtype.numpy is not None:
        data = np.ascontiguousarray(values, dtype.numpy)
        return data.view(np.uint8).reshape(len(values), -1)
    return quantise(values, dtype)
