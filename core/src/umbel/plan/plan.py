"""A plan: everything about one step shape decided once, so that a step only runs.

Made by `make`; immutable; every tensor keeps its address, so that a backend compiles a split
once. A step writes the inputs, calls `graph_compute` once per split, waits, and reads what was
asked for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from umbel.errors import CancelledError, DeviceError, GraphError, UmbelError
from umbel.gguf.quants import dequantise, quantise
from umbel.gguf.types import DType
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.plan.allocate import Copy, Layout, allocate
from umbel.plan.emit import Placement, RowWrite, place
from umbel.plan.memory import Arenas, States, Target, Weights
from umbel.plan.place import FLOATS, Placer
from umbel.plan.split import Split, cut

_uids = itertools.count(1)


@attrs.frozen(eq=False)
class Step:
    """One split, ready: its graph with addresses, the copies before it, whom it waits for."""

    target: Target
    graph: SplitGraph
    copies: tuple[tuple[Slot, Slot, int], ...]  # (from, to, bytes)
    waits: tuple[Target, ...]


@attrs.frozen(eq=False)
class Plan:
    placement: Placement
    splits: tuple[Split, ...]
    layout: Layout
    steps: tuple[Step, ...]
    inputs: tuple[tuple[Tensor, Slot], ...]
    outputs: tuple[tuple[Tensor, Slot], ...]
    row_writes: tuple[tuple[RowWrite, Slot, Slot], ...]  # (write, its rows, its state)
    check: bool = False

    @property
    def targets(self) -> list[Target]:
        """In the order in which their locks are taken, by whichever plan."""
        return sorted({s.target for s in self.splits}, key=lambda t: t.name)

    def run(
        self, feeds: Mapping[str, np.ndarray], stop: Callable[[], bool] = bool
    ) -> list[np.ndarray]:
        """One step: the arrays of the graph's outputs (writes to state give none).

        Raises what a device raised; with `check`, the error names the node. `stop` is asked
        between splits. Whatever happens, no device is still at work afterwards.
        """
        with contextlib.ExitStack() as stack:
            for target in self.targets:
                stack.enter_context(target.lock)
            try:
                return self._run(feeds, stop)
            except BaseException:
                for target in self.targets:
                    with contextlib.suppress(UmbelError):
                        target.sync(target.device)
                raise

    def _run(
        self, feeds: Mapping[str, np.ndarray], stop: Callable[[], bool]
    ) -> list[np.ndarray]:
        for tensor, slot in self.inputs:
            slot.buffer.write(slot.offset, _given(feeds, tensor))
        for step in self.steps:
            if stop():
                msg = "the step was cancelled"
                raise CancelledError(msg)
            self._run_step(step)
        for target in self.targets:
            target.sync(target.device)
        outputs = [_read(t, slot) for t, slot in self.outputs]
        for write, rows, state in self.row_writes:
            _write_rows(write, rows, state, feeds[write.ids].reshape(-1))
        return outputs

    def _run_step(self, step: Step) -> None:
        for target in step.waits:
            target.sync(target.device)
        for source, destination, nbytes in step.copies:
            buffer, at = destination.buffer, destination.offset
            if not buffer.copy_from(at, source.buffer, source.offset, nbytes):
                buffer.write(at, source.buffer.read(source.offset, nbytes))
        try:
            step.target.graph_compute(step.target.device, step.graph)
            if self.check:
                step.target.sync(step.target.device)
                _check_values(step.graph)
        except DeviceError as error:
            if self.check:
                nodes = ", ".join(f"{n.label} ({n.op.name})" for n in step.graph.nodes if n.op)
                error.what = f"{nodes} on {step.target.name}: {error.what}"
            raise

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
    placement = place(graph, placer or Placer(targets, ops), states.homes)
    wanted = [t.storage for t in placement.outputs]
    wanted += [w.rows.storage for w in placement.row_writes]
    splits = cut(placement.nodes, wanted, single=check)
    layout = allocate(splits, wanted)
    binder = _Binder(splits, layout, weights, states, arenas)
    return Plan(
        placement,
        tuple(splits),
        layout,
        binder.steps(),
        binder.inputs(),
        tuple((t, binder.made(t)) for t in placement.outputs),
        tuple(map(binder.row_write, placement.row_writes)),
        check,
    )


@attrs.frozen(eq=False)
class _Binder:
    """Turns the layout into slots, and splits into steps; weights are loaded at first use."""

    splits: Sequence[Split]
    layout: Layout
    weights: Weights
    states: States
    arenas: Arenas
    _slots: dict[tuple[str, Tensor], Slot] = attrs.field(factory=dict, init=False)

    def slot(self, target: Target, t: Tensor) -> Slot:
        """Where a split on `target` finds the storage `t`."""
        if t.role in (Role.WEIGHT, Role.CONST):
            return self.weights.slot(t, target)
        if t.role is Role.STATE:
            return self.states.slots[t.name]
        owner = self.layout.owners[target.name, t]
        key = (owner.name, t)
        if key not in self._slots:
            kind = owner.buffer_type
            if kind.separate:
                usage = "input" if t.role is Role.INPUT else "compute"
                self._slots[key] = Slot(kind.allocate(kind.alloc_size(t), usage))
            else:
                arena = self.arenas.buffer(owner, self.layout.sizes[owner.name])
                self._slots[key] = Slot(arena, self.layout.offsets[key])
        return self._slots[key]

    def made(self, t: Tensor) -> Slot:
        """Where a computed tensor lies on the device that made it."""
        return self.slot(self.layout.made_on[t.storage], t.storage)

    def row_write(self, write: RowWrite) -> tuple[RowWrite, Slot, Slot]:
        return write, self.made(write.rows), self.states.slots[write.state.storage.name]

    def inputs(self) -> tuple[tuple[Tensor, Slot], ...]:
        """The inputs of the step, on each device that uses them."""
        pairs = ((s.target, t) for s in self.splits for t in s.inputs if t.role is Role.INPUT)
        slots = {self.slot(target, t): t for target, t in pairs}
        return tuple((t, slot) for slot, t in slots.items())

    def steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        working: list[Target] = []
        for split, copies in zip(self.splits, self.layout.copies, strict=True):
            target = split.target
            waits = tuple(t for t in working if _meet(t, target, copies))
            working = [t for t in working if t not in (*waits, target)] + [target]
            moves = tuple(self._move(c) for c in copies)
            steps.append(Step(target, self._graph(split), moves, waits))
        return tuple(steps)

    def _move(self, copy: Copy) -> tuple[Slot, Slot, int]:
        t = copy.tensor
        return self.slot(copy.source, t), self.slot(copy.destination, t), t.nbytes

    def _graph(self, split: Split) -> SplitGraph:
        known = {t.storage for t in split.inputs + split.outputs}
        if not split.target.info.opaque:
            known |= {t.storage for n in split.nodes for t in (*n.inputs, n)}
        slots = {t: self.slot(split.target, t) for t in known}
        return SplitGraph(next(_uids), split.nodes, split.inputs, split.outputs, slots)


def _meet(one: Target, other: Target, copies: Sequence[Copy]) -> bool:
    """Whether `other` must not start before `one`, which may still be at work, has finished:
    it needs a copy from there, or one of them works in the memory of the other."""
    needed = any(c.source is one for c in copies)
    return one is not other and (needed or one.reads(other) or other.reads(one))


def _check_values(graph: SplitGraph) -> None:
    """Looks at what the one node of a split has computed."""
    node = graph.nodes[-1]
    finite = node.base is not None or np.isfinite(_read(node, graph.slots[node]))
    if not np.all(finite):
        msg = "it gave values that are not finite"
        raise DeviceError(msg, where=node, got=f"first at {np.argwhere(~finite)[0].tolist()}")


def _given(feeds: Mapping[str, np.ndarray], tensor: Tensor) -> np.ndarray:
    given = feeds.get(tensor.name)
    if given is None or given.shape != tensor.shape:
        msg = f"input {tensor.name!r} of the step is missing or of another shape"
        got = None if given is None else list(given.shape)
        raise GraphError(msg, expected=list(tensor.shape), got=got)
    return _as_stored(given, tensor.dtype)


def _as_stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values as the memory of a tensor of that dtype holds them."""
    if dtype.numpy is not None:
        return np.ascontiguousarray(values, dtype.numpy)
    return quantise(values, dtype)


def _read(t: Tensor, slot: Slot) -> np.ndarray:
    """A copy of the values of a contiguous tensor; floats as float32."""
    raw = slot.buffer.read(slot.offset + t.offset, t.nbytes)
    values = raw if t.dtype.numpy is None else raw.view(t.dtype.numpy)
    return (dequantise(values, t.dtype) if t.dtype in FLOATS else values).reshape(t.shape)


def _write_rows(write: RowWrite, rows: Slot, state: Slot, ids: np.ndarray) -> None:
    """What a device that cannot scatter left to do: new rows go into the state."""
    data = _as_stored(_read(write.rows, rows), write.state.dtype)
    for row, at in zip(data, ids, strict=True):
        state.buffer.write(state.offset + write.state.offset + int(at) * row.nbytes, row)
