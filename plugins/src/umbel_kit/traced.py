"""A model's steps, node by node: what the references compute, and what the devices make of it.

The nodes are those of the plan, each on its device and in the form that the device claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from umbel.batch import Feed
from umbel.gguf import GGUFFile
from umbel.gguf.types import F32, DType
from umbel.graph import Operation, Role, Tensor
from umbel.models import StepShape
from umbel.ops.rows import set_rows
from umbel.plan.emit import Placed, Placement
from umbel.plan.place import FLOATS
from umbel.runner import Runner
from umbel.state import Sequence as Seq

from umbel_kit.alone import Finding, Result, by_reference, judge, run
from umbel_kit.device import Call, as_stored
from umbel_kit.recorded import Leaf, Recorded, View


@attrs.frozen(eq=False)
class Step:
    """One step of the model: its placed graph, and what it is given."""

    title: str
    placement: Placement
    given: Mapping[str, np.ndarray]


@attrs.frozen(eq=False)
class Compared:
    """One node, and how far the device's result is from the reference's."""

    step: str
    index: int
    name: str
    op: str
    device: str
    finding: Finding


def steps(runner: Runner, ids: Sequence[int]) -> list[Step]:
    """A prefill of all ids but the last and one step of decoding; an encoder: all at once."""
    sequence, made = Seq(), list[Step]()
    left = list(ids)
    last = 0 if runner.encodes else 1
    while left:
        piece = runner.piece(left[: len(left) - last] or left)
        left = left[len(piece) :]
        rows = len(piece) if runner.encodes else 1
        shape = StepShape(len(piece), 1, len(sequence) + len(piece), rows)
        made.append(_step(runner, sequence, piece, runner.padded(shape)))
    return made


def _step(runner: Runner, sequence: Seq, piece: list[int], shape: StepShape) -> Step:
    plan = runner.plan(shape)
    taken = runner.cache.begin(sequence, len(piece))
    batch, columns = [(sequence, piece)], runner.adapters.columns
    feed = Feed(shape, batch, [taken], not runner.encodes, columns)
    given = feed.arrays(plan.names)
    past = len(sequence)
    runner.cache.commit(sequence, piece, taken)
    title = f"{len(piece)} token{'s' * (len(piece) != 1)} after {past}"
    return Step(title, plan.placement, given)


class World:
    """The values of a step's tensors and the states, as one computer has them.

    The `wide` one keeps everything in float32; the other as the devices' memory would.
    """

    def __init__(self, file: GGUFFile, *, wide: bool) -> None:
        self.file = file
        self.wide = wide
        self.values: dict[Tensor, np.ndarray] = {}  # of the step's storages
        self.states: dict[str, np.ndarray] = {}

    def record(self, node: Tensor, step: Step, story: Mapping[str, str]) -> Recorded:
        """A node with its inputs as they are here."""
        assert node.op is not None
        storages = list(dict.fromkeys(t.storage for t in node.inputs))
        leaves = [self._leaf(t, step) for t in storages]
        inputs = [(storages.index(t.storage), views(t)) for t in node.inputs]
        how, dtype = node.attrs, self._dtype(node)
        if "dtype" in how and dtype is not node.dtype:
            how = {**how, "dtype": dtype.name}  # of a cast
        return Recorded(node.op.name, node.label, how, dtype, leaves, inputs, story)

    def _leaf(self, t: Tensor, step: Step) -> Leaf:
        if t.role is Role.WEIGHT:
            name = t.attrs.get("of", t.name)
            array = self.file.array(name)[t.attrs.get("rows", ...)]
            return Leaf(t.name, t.role, self.file.tensors[name].dtype, t.shape, array)
        if t.role is Role.STATE:
            return Leaf(t.name, t.role, t.dtype, t.shape, self.state(t))
        role = Role.CONST if t.role is Role.CONST else Role.INPUT
        dtype = self._dtype(t)
        if t.role is Role.INPUT:
            array = as_stored(step.given[t.name], dtype)
        elif t.data is not None:
            array = as_stored(t.data, dtype) if dtype is not t.dtype else t.data
        else:
            array = as_stored(self.values[t], dtype)
        return Leaf(t.label, role, dtype, t.shape, array)

    def _dtype(self, t: Tensor) -> DType:
        return F32 if self.wide and t.dtype in FLOATS else t.dtype

    def state(self, t: Tensor) -> np.ndarray:
        """All rows of a state, zeros at first."""
        if t.name not in self.states:
            numpy, shape = t.dtype.numpy, t.shape
            if numpy is None:
                shape = (*shape[:-1], t.dtype.row_bytes(shape[-1]))
            self.states[t.name] = np.zeros(shape, numpy or np.uint8)
        return self.states[t.name]

    def drop(self, storages: Iterable[Tensor]) -> None:
        """Nobody reads these any more."""
        for t in storages:
            self.values.pop(t, None)

    def take(self, node: Tensor, result: Result) -> None:
        """What was computed for `node`, and left in its states."""
        if node.base is None:
            self.values[node] = result[0]
        self.states |= result[1]

    def end(self, step: Step) -> None:
        """Writes the rows that the plan would write after the step."""
        for state, new, ids in step.placement.row_writes:
            rows, into = self._view(new, self.values), self._view(state, {})
            set_rows(into, rows.astype(np.float32), step.given[ids.name])
        self.values.clear()

    def _view(self, t: Tensor, values: Mapping[Tensor, np.ndarray]) -> np.ndarray:
        """A tensor that is a window on a storage."""
        array = values[t.storage] if t.storage in values else self.state(t.storage)
        for op, how in _operations(t):
            array = op.reference(array, **how)
        return array


class Tracer:
    """Compares steps that follow each other.

    Each node gets the reference's inputs, rounded to the dtype of its device, or, `chained`,
    what the devices themselves made of them; then the reference is all in float32.
    """

    def __init__(
        self,
        file: GGUFFile,
        ops: Mapping[str, Operation],
        *,
        chained: bool = False,
        limit: float | None = None,
    ) -> None:
        self.ops = ops
        self.chained = chained
        self.limit = limit
        self.own = World(file, wide=False)
        self.truth = World(file, wide=True) if chained else self.own

    def compare(self, step: Step) -> Iterator[tuple[Compared, Recorded, Call]]:
        """Every node of the step, in order; to the first failure where the others need it."""
        dying = _last_uses(step.placement)
        worlds = list(dict.fromkeys((self.own, self.truth)))
        for i, placed in enumerate(step.placement.nodes):
            node, target = placed.node, placed.target
            case = self.own.record(node, step, _story(step, placed))
            call = case.ready(target, self.ops)
            true = call
            if self.chained:
                true = self.truth.record(node, step, {}).ready(None, self.ops)
            expected, actual = by_reference(true), run(target, call)
            finding = judge(call, target, expected, actual, self.limit)
            where = step.title, i, case.name, case.op, target.device.title
            yield Compared(*where, finding), case, call
            if self.chained:
                if isinstance(actual, str):
                    return
                self.own.take(node, actual)
            self.truth.take(node, expected)
            for world in worlds:
                world.drop(dying[i])
        for world in worlds:
            world.end(step)


def _last_uses(placement: Placement) -> list[list[Tensor]]:
    """The storages that nobody needs after each node."""
    nodes = [p.node for p in placement.nodes]
    kept = {new.storage for _, new, _ in placement.row_writes}
    dying: list[list[Tensor]] = []
    for node in reversed(nodes):
        used = {t.storage for t in (*node.inputs, node)} - kept
        kept |= used
        dying.append(list(used))
    return dying[::-1]


def _story(step: Step, placed: Placed) -> dict[str, str]:
    target = placed.target
    return {"step": step.title, "device": target.device.title, "reason": placed.reason}


def _operations(t: Tensor) -> list[tuple[Operation, Mapping[str, Any]]]:
    """The views that lead from the storage to `t`; a write to state moves nothing."""
    found = []
    while t.op is not None and t.base is not None:
        if t.op.view:
            found.append((t.op, t.attrs))
        t = t.inputs[0]
    return found[::-1]


def views(t: Tensor) -> list[View]:
    return [(op.name, how) for op, how in _operations(t)]
