"""A plan: everything about one step shape decided once, so that a step only runs.

Made by `make`; immutable; every tensor keeps its address, so that a backend compiles a split
once. A step writes the inputs, calls `graph_compute` once per split, waits, and reads what was
asked for.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from umbel.errors import CancelledError, DeviceError, GraphError, UmbelError
from umbel.gguf.types import F32, dequantise
from umbel.graph import Graph, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.plan import room
from umbel.plan.allocate import Key, Layout, allocate
from umbel.plan.emit import Placement, place
from umbel.plan.memory import Arenas, States, Target, Weights, as_stored
from umbel.plan.place import FLOATS, Placer
from umbel.plan.split import Split, cut

Located = tuple[Tensor, Slot]  # and where its storage lies
Ends = tuple[Tensor, Tensor]  # the first and the last of some nodes
Given = dict[Target, Ends]  # what devices were given since they were waited for
_uids = itertools.count(1)


class Stop:
    """Ends the steps of a model, from any thread. A device is told only while a step holds its
    lock, and waited for before others get it: nobody else can be hit."""

    def __init__(self) -> None:
        self.asked = False
        self._held: Sequence[Target] = ()
        self._lock = threading.RLock()  # the garbage collector may ask, at any point

    def ask(self) -> None:
        with self._lock:
            self.asked = True
            for target in self._held:
                with contextlib.suppress(UmbelError):  # recorded; the step goes on to its end
                    target.hooks.cancel(target.device)

    @contextlib.contextmanager
    def holding(self, targets: Sequence[Target]) -> Iterator[None]:
        """The locks of these devices; none of them is still at work afterwards."""
        locks: list[threading.RLock] = []
        try:
            for target in targets:
                target.lock.acquire()
                locks.append(target.lock)
            self._held, done = targets, False
            try:
                yield
                done = True
            except CancelledError as error:
                if self.asked:
                    raise
                msg = "a device cancelled a step that nobody wanted cancelled"
                raise DeviceError(msg, where=error.where, got=error.what) from error
            finally:
                with self._lock:
                    self._held = ()
                # A step that came to its end has waited; a cancel may have come after that.
                for target in () if done and not self.asked else targets:
                    with contextlib.suppress(UmbelError):
                        target.hooks.sync(target.device)
        finally:
            for lock in reversed(locks):
                lock.release()


@attrs.frozen(eq=False)
class Step:
    """One split, ready: its graph with addresses, the copies before it, whom it waits for."""

    target: Target
    graph: SplitGraph
    copies: tuple[tuple[Slot, Slot, int], ...]  # (from, to, bytes)
    waits: tuple[Target, ...]


@attrs.frozen(eq=False)
class Plan:
    first: Target  # the device that was to run it
    placement: Placement
    steps: tuple[Step, ...]
    inputs: tuple[Located, ...]
    outputs: tuple[Located, ...]
    row_writes: tuple[tuple[Located, Located, Tensor], ...]  # (state, new rows, row numbers)
    check: bool
    names: frozenset[str] = attrs.field(init=False)  # of the arrays that a step is given
    # in the order in which their locks are taken, by whichever plan
    targets: list[Target] = attrs.field(init=False)

    @names.default
    def _names(self) -> frozenset[str]:
        rows = [ids for _, _, ids in self.row_writes]
        return frozenset(t.name for t in (*(t for t, _ in self.inputs), *rows))

    @targets.default
    def _targets(self) -> list[Target]:
        return sorted({s.target for s in self.steps}, key=lambda t: t.name)

    def run(
        self, feeds: Mapping[str, np.ndarray], stop: Stop | None = None
    ) -> list[np.ndarray]:
        """One step: the arrays of the graph's outputs (writes to state give none).

        Raises what a device raised; the error names the split, with `check` the node. `stop`
        ends it by a `CancelledError`. Whatever happens, no device is at work afterwards.
        """
        stop = stop or Stop()
        with stop.holding(self.targets):
            return self._run(feeds, stop)

    def _run(self, feeds: Mapping[str, np.ndarray], stop: Stop) -> list[np.ndarray]:
        for tensor, slot in self.inputs:
            slot.buffer.write(slot.offset, _given(feeds, tensor))
        given: Given = {}
        for step in self.steps:
            if stop.asked:
                msg = "the step was cancelled"
                raise CancelledError(msg)
            self._run_step(step, given)
        for target in self.targets:
            self._wait(target, given)
        outputs = [_read(*output) for output in self.outputs]
        for (state, slot), new, ids in self.row_writes:
            rows, start = as_stored(_read(*new), state.dtype), slot.offset + state.offset
            for row, at in zip(rows, _given(feeds, ids), strict=True):
                slot.buffer.write(start + int(at) * state.strides[0], row)
        return outputs

    def _wait(self, target: Target, given: Given) -> None:
        self._named(given.pop(target, ()), target, target.hooks.sync, target.device)

    def _run_step(self, step: Step, given: Given) -> None:
        for target in step.waits:
            self._wait(target, given)
        for source, destination, nbytes in step.copies:
            buffer, at = destination.buffer, destination.offset
            if not buffer.copy_from(at, source.buffer, source.offset, nbytes):
                buffer.write(at, source.buffer.read(source.offset, nbytes))
        target, nodes = step.target, step.graph.nodes
        first, _ = given.get(target) or (nodes[0], None)
        given[target] = ends = first, nodes[-1]
        compute = target.hooks.graph_compute
        self._named(ends, target, compute, target.device, step.graph)
        if self.check:
            self._wait(target, given)
            self._named(ends, target, _check_values, step.graph)

    def _named(
        self,
        nodes: Iterable[Tensor],
        target: Target,
        call: Callable[..., object],
        *args: object,
    ) -> None:
        """Calls; errors name the first and the last of the nodes that may be to blame."""
        try:
            call(*args)
        except DeviceError as error:
            named = [f"{n.label} ({n.op.name})" for n in dict.fromkeys(nodes) if n.op]
            blamed = " to ".join(named) or "a step"
            error.what = f"{blamed} on {target.name}: {error.what}"
            if not self.check:
                error.do = error.do or "run again with --check: it names the node"
            raise

    def prepare(self) -> None:
        """Lets the devices take what memory they will need beside the plan's."""
        for step in self.steps:
            with step.target.lock:
                step.target.hooks.prepare(step.target.device, step.graph)

    def forget(self) -> None:
        """Lets the devices drop what they compiled for this plan."""
        for step in self.steps:
            # a fault is recorded; it keeps nobody from closing
            with step.target.lock, contextlib.suppress(UmbelError):
                step.target.hooks.forget(step.target.device, step.graph.uid)


def make(
    graph: Graph,
    placer: Placer,
    weights: Weights,
    states: States,
    arenas: Arenas,
    *,
    check: bool = False,
) -> Plan:
    """Places, splits, allocates and binds `graph`; loads the weights that are not there yet."""
    placement = place(graph, placer, states.homes)
    wanted = [t.storage for t in placement.outputs]
    wanted += [new.storage for _, new, _ in placement.row_writes]
    splits = cut(placement.nodes, wanted, single=check)
    layout = allocate(splits, wanted)
    _check_room(splits, weights)
    binder = _Binder(layout, weights, states, arenas)
    steps = tuple(binder.steps(splits))
    inputs = [(t, at) for (_, t), at in binder.slots.items() if t.role is Role.INPUT]
    outputs = [(t, binder.made(t)) for t in placement.outputs]
    row_writes = [
        ((state, states.slots[state.storage.name]), (new, binder.made(new)), ids)
        for state, new, ids in placement.row_writes
    ]
    first, ends = placer.targets[0], (tuple(inputs), tuple(outputs), tuple(row_writes))
    return Plan(first, placement, steps, *ends, check)


def _check_room(splits: Sequence[Split], weights: Weights) -> None:
    """For weights that are not loaded yet; what the host maps takes no memory of its own."""
    for target in {s.target for s in splits if not s.target.buffer_type.is_host}:
        read = dict.fromkeys(t for s in splits if s.target is target for t in s.inputs)
        new = [t for t in read if t.role is Role.WEIGHT and not weights.has(t, target)]
        if new:  # what is free may take a device a second to tell, and plans are made in use
            room.check(target, new)


@attrs.frozen(eq=False)
class _Binder:
    """Turns the layout into slots, and splits into steps; weights are loaded at first use."""

    layout: Layout
    weights: Weights
    states: States
    arenas: Arenas
    slots: dict[Key, Slot] = attrs.field(factory=dict, init=False)  # of what a step writes

    def slot(self, target: Target, t: Tensor) -> Slot:
        """Where a split on `target` finds the storage `t`."""
        if t.role in (Role.WEIGHT, Role.CONST):
            return self.weights.slot(t, target)
        if t.role is Role.STATE:
            return self.states.slots[t.name]
        owner = self.layout.owner(target, t)
        key = (owner, t)
        if key not in self.slots:
            kind = owner.buffer_type
            if kind.separate:
                usage = "input" if t.role is Role.INPUT else "compute"
                self.slots[key] = Slot(kind.allocate(kind.alloc_size(t), usage))
            else:
                arena = self.arenas.buffer(owner, self.layout.arenas[owner].peak)
                self.slots[key] = Slot(arena, self.layout.offsets[key])
        return self.slots[key]

    def made(self, t: Tensor) -> Slot:
        """Where a computed tensor lies on the device that made it."""
        return self.slot(self.layout.made_on[t.storage], t.storage)

    def steps(self, splits: Iterable[Split]) -> Iterable[Step]:
        working: list[Target] = []
        for split, copied in zip(splits, self.layout.copies, strict=True):
            target = split.target
            sources = {self.layout.made_on[t] for t in copied}
            waits = tuple(t for t in working if t in sources or _meet(t, target))
            working = [t for t in working if t not in (*waits, target)] + [target]
            copies = tuple((self.made(t), self.slot(target, t), t.nbytes) for t in copied)
            storages = dict.fromkeys(itertools.chain(*split.storages()))
            slots = {t: self.slot(target, t) for t in storages}
            graph = SplitGraph(next(_uids), split.nodes, split.inputs, split.outputs, slots)
            yield Step(target, graph, copies, waits)


def _meet(one: Target, other: Target) -> bool:
    """Whether one of them, if both are at work, is at work in the memory of the other."""
    return one is not other and (one.reads(other) or other.reads(one))


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
    return as_stored(given, tensor.dtype)


def _read(t: Tensor, slot: Slot) -> np.ndarray:
    """A copy of the values of a contiguous tensor; floats as float32."""
    raw = slot.buffer.read(slot.offset + t.offset, t.nbytes)
    values = raw if t.dtype.numpy is None else raw.view(t.dtype.numpy)
    narrow = t.dtype in FLOATS and t.dtype is not F32
    return (dequantise(values, t.dtype) if narrow else values).reshape(t.shape)
