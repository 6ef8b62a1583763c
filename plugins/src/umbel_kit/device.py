"""The device under test, and one operation run on it in memory that shows what it should not.

The contract is used as a plan uses it, by the hooks alone: weights are stored, state and the
rest are allocated, inputs written, the split computed and waited for, results read. Around each
tensor lies a guard whose bytes must still be there afterwards, and what is to be computed holds
NaN before.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from umbel.gguf.types import DType, dequantise, quantise
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.hookspecs import Buffer, Slot, SplitGraph
from umbel.plan import Target
from umbel.plan.place import FLOATS

from umbel_kit import cases, compare
from umbel_kit.cases import Arg, Case
from umbel_kit.reference import evaluate

GUARD = 4096  # bytes: as many as 1024 float32, as ggml's
_PATTERN = 0xA5
_JUNK = 0xFF  # NaN, whatever the float
_uids = itertools.count(1 << 40)  # no plan's


@attrs.frozen(eq=False)
class Call:
    """A case made ready for one device: the node as the device sees it, and the arrays."""

    case: Case
    graph: Graph
    arrays: Mapping[Tensor, np.ndarray]  # of the leaves, rounded as the device stores them
    sources: Mapping[Tensor, tuple[Tensor, np.ndarray]]  # of weights: as a file has them

    @property
    def node(self) -> Tensor:
        return self.graph.outputs[0]

    @property
    def writes(self) -> bool:
        """Whether the node changes a state in place."""
        return self.node.op is not None and self.node.op.writes


def prepare(case: Case, target: Target, ops: Mapping[str, Operation]) -> Call:
    """The node with activations in the device's dtype and weights as it accepts them."""
    compute, drawn = target.compute_dtype, cases.arrays(case, target.compute_dtype)
    accepts = target.buffer_type.accepts

    def dtype_of(arg: Arg) -> DType:
        dtype = arg.stored_in(compute)
        weight = Tensor(arg.leaf_shape, dtype, Role.WEIGHT, case.op)
        return accepts(weight) if arg.role is Role.WEIGHT else dtype

    graph = cases.graph(case, ops, dtype_of)
    (node,) = graph.outputs
    if case.op != "cast" and not ops[case.op].writes and node.dtype in FLOATS:
        graph = cases.graph(case, ops, dtype_of, stored_as=compute)
        (node,) = graph.outputs
    leaves: dict[Tensor, np.ndarray] = {}
    sources: dict[Tensor, tuple[Tensor, np.ndarray]] = {}
    for i, (t, arg, array) in enumerate(zip(node.inputs, case.args, drawn, strict=True)):
        if arg.role is Role.WEIGHT:
            leaf, whole = t.storage, cases.laid_out(arg, array)
            source = Tensor(arg.leaf_shape, arg.stored_in(compute), Role.WEIGHT, leaf.name)
            exact = i in cases.EXACT.get(case.op, ())
            sources[leaf] = (source, whole)
            leaves[leaf] = whole if exact else converted(whole, source.dtype, leaf.dtype)
        else:
            leaves[t.storage] = cases.laid_out(arg, array)
    return Call(case, graph, leaves, sources)


def converted(array: np.ndarray, dtype: DType, wanted: DType) -> np.ndarray:
    """An array of one dtype as memory of another holds it."""
    return array if dtype is wanted else as_stored(dequantise(array, dtype), wanted)


def as_stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values as memory of that dtype holds them; what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.numpy is not None:
            return np.ascontiguousarray(values, dtype.numpy)
        return quantise(np.ascontiguousarray(values, np.float32), dtype)


def refusal(call: Call, target: Target) -> str | None:
    """Why the device does not run the call; None if it says that it does."""
    reason = target.hooks.op_supported(target.device, call.node)
    assert reason is None or (isinstance(reason, str) and reason.strip()), (
        f"op_supported answered {reason!r:.100}, expected None or a reason"
    )
    return reason


def reference(call: Call) -> tuple[np.ndarray, dict[Tensor, np.ndarray]]:
    """The result, and what the states hold afterwards."""
    states = {t: a.copy() for t, a in call.arrays.items() if t.role is Role.STATE}
    (value,) = evaluate(call.graph, {**call.arrays, **states})
    return value, states


class Subject:
    """A device and the memory of one call."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = target.buffer_type
        self.slots: dict[Tensor, Slot] = {}
        self.guards: list[tuple[Buffer, int, int, str]] = []  # (where, from, to, before what)

    def run(self, call: Call) -> tuple[np.ndarray, dict[Tensor, np.ndarray]]:
        """The result on the device, and what its states hold; an AssertionError says more."""
        with self.target.lock:
            return self._run(call)

    def _run(self, call: Call) -> tuple[np.ndarray, dict[Tensor, np.ndarray]]:
        split = self.load(call)
        try:
            self.compute(split)
        finally:
            self.target.hooks.forget(self.target.device, split.uid)
        states = {t: self._read(t) for t in call.arrays if t.role is Role.STATE}
        value = self._read(call.node)
        if call.node.dtype in FLOATS:
            value = dequantise(value, call.node.dtype)
        self._check_guards()
        for t, array in call.arrays.items():
            if t.role is Role.INPUT:
                same = np.array_equal(self._bytes(t), _flat(array))
                assert same, f"{t.name} was written to, which is an input"
        return value, states

    def load(self, call: Call) -> SplitGraph:
        """The split of this one node, and in its memory what the call is given."""
        split = self.split(call)
        for t, array in call.arrays.items():
            if t.role is not Role.WEIGHT:
                slot = self.slots[t]
                slot.buffer.write(slot.offset, array)
        return split

    def compute(self, split: SplitGraph) -> None:
        with self.target.lock:
            self.target.hooks.graph_compute(self.target.device, split)
            self.target.hooks.sync(self.target.device)

    def split(self, call: Call) -> SplitGraph:
        """The split of this one node, every tensor in its memory."""
        node = call.node
        leaves = list(dict.fromkeys(t.storage for t in node.inputs))
        for t in leaves:
            if t.role is Role.WEIGHT:
                self.slots[t] = Slot(self.kind.store(*call.sources[t]))
            elif t.role is Role.STATE:
                self._place_state(t)
        own = [t for t in leaves if t.role is Role.INPUT]
        self._place(own if node.base is not None else [*own, node])
        return SplitGraph(next(_uids), (node,), tuple(leaves), (node,), dict(self.slots))

    def _place_state(self, t: Tensor) -> None:
        size, behind = self.kind.alloc_size(t), 0 if self.kind.separate else GUARD
        self.slots[t] = Slot(self.kind.allocate(size + behind, "state"))
        if behind:
            self._guard(self.slots[t].buffer, size, size + behind, f"what follows {t.label}")

    def _place(self, tensors: Sequence[Tensor]) -> None:
        sizes = {t: self.kind.alloc_size(t) for t in tensors}
        if self.kind.separate:
            for t, size in sizes.items():
                usage = "input" if t.role is Role.INPUT else "compute"
                self.slots[t] = Slot(self.kind.allocate(size, usage))
        else:
            self._place_between_guards(sizes)
        for t in tensors:
            if t.role is Role.NODE:
                slot = self.slots[t]
                slot.buffer.write(slot.offset, np.full(t.nbytes, _JUNK, np.uint8))

    def _place_between_guards(self, sizes: Mapping[Tensor, int]) -> None:
        align, at, starts = self.kind.alignment, 0, {}
        for t, size in sizes.items():
            starts[t] = at = -(-(at + GUARD) // align) * align
            at += size
        whole = self.kind.allocate(at + GUARD, "compute")
        before = 0
        for t, size in sizes.items():
            self.slots[t] = Slot(whole, starts[t])
            self._guard(whole, before, starts[t], t.label)
            before = starts[t] + size
        self._guard(whole, before, at + GUARD, "the end")

    def _guard(self, buffer: Buffer, start: int, stop: int, label: str) -> None:
        buffer.write(start, np.full(stop - start, _PATTERN, np.uint8))
        self.guards.append((buffer, start, stop, label))

    def _check_guards(self) -> None:
        for buffer, start, stop, label in self.guards:
            good = (buffer.read(start, stop - start) == _PATTERN).all()
            assert good, f"the bytes before {label} were overwritten, which are nobody's"

    def _bytes(self, t: Tensor) -> np.ndarray:
        slot = self.slots[t.storage]
        return slot.buffer.read(slot.offset, t.nbytes)

    def _read(self, t: Tensor) -> np.ndarray:
        """As it is stored: typed, or rows of bytes."""
        raw = self._bytes(t)
        if t.dtype.numpy is None:
            return raw.reshape(*t.shape[:-1], t.dtype.row_bytes(t.shape[-1]))
        return raw.view(t.dtype.numpy).reshape(t.shape)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def trial(call: Call, target: Target) -> str:
    """Runs a call on the device, and says what is wrong; empty if nothing is."""
    try:
        value, states = Subject(target).run(call)
    except AssertionError as error:
        return str(error).partition("\n")[0]  # pytest adds what it knows of an assertion
    drops_nan = bool(target.info.details.get("drops_nan"))
    return fault(call, target.info.compute_dtype, value, states, drops_nan=drops_nan)


def fault(
    call: Call,
    dtype: str,
    result: np.ndarray,
    states: Mapping[Tensor, np.ndarray],
    *,
    drops_nan: bool = False,
) -> str:
    """What is wrong with the result or the states of a call; empty if nothing is."""
    (expected, kept), case = reference(call), call.case
    if case.edges:
        own = call.node.dtype.name if call.node.dtype in FLOATS else dtype
        return compare.edge_fault(own, expected, result) or ""
    found = None
    if not call.writes:
        found = compare.fault(
            case.op, dtype, expected, result, case.stored, drops_nan=drops_nan
        )
    for t, array in kept.items():
        wanted, got = (dequantise(a, t.dtype) for a in (array, states[t]))
        found = found or _strays(t, call.arrays[t], array, states[t])
        found = found or compare.fault("state", dtype, wanted, got, t.dtype.name)
    return found or ""


def _strays(t: Tensor, before: np.ndarray, after: np.ndarray, states: np.ndarray) -> str | None:
    """Which row of a state was written that is not to change by as much as a bit."""
    rows = [_flat(a).reshape(len(a), -1) for a in (before, after, states)]
    kept = (rows[0] == rows[1]).all(axis=1)
    changed = np.flatnonzero(kept & (rows[0] != rows[2]).any(axis=1))
    return f"row {changed[0]} of {t.name} was written to, unasked" if len(changed) else None
