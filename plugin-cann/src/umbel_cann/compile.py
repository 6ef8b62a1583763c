"""Splits to programs, and the question whether a node can be in one."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F16
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, SplitGraph

from umbel_cann.blame import Blame, Launched
from umbel_cann.brought import Brought
from umbel_cann.capture import MOST
from umbel_cann.chips import Chip
from umbel_cann.debug import Debug
from umbel_cann.heap import Region, padded
from umbel_cann.lowering import Keep, Lowering, Missing
from umbel_cann.memory import NpuBuffer, NpuMemory
from umbel_cann.ops import LOWERINGS
from umbel_cann.ops.divided import SCALE_FREE, carried
from umbel_cann.ops.flash import blocked
from umbel_cann.ops.fusion import Reads, pairs, rounded, steps
from umbel_cann.paging import Cells, Laid
from umbel_cann.program import Program, Results, Room, workspace
from umbel_cann.runtime import TO_DEVICE, Npu
from umbel_cann.scratch import Scratch
from umbel_cann.states import Written, written
from umbel_cann.views import Unsupported

Key = tuple[int, bool]

log = logging.getLogger("umbel")

EXECUTORS = 8192  # that are kept: how many the vendor's pool takes is told nowhere
_NONE = Brought()


def lower(to: Lowering, node: Tensor, now: int = 0, brought: Brought = _NONE) -> None:
    """Adds the launches of one node, the `now`th of its split; a view has none."""
    assert node.op is not None
    if node.op.view or not node.size:
        return
    if (kernel := brought.choose(node, to.chip, to.missing)[0]) is not None:
        kernel.lower(to, node, now)
        return
    how = LOWERINGS.get(node.op.name)
    if how is None:
        msg = f"it has no kernel for {node.op.name}"
        raise Unsupported(msg)
    if not all(t.size for t in node.inputs):
        msg = "it takes no empty tensors"
        raise Unsupported(msg)
    to.begin(node, now)
    power = carried(to, node)
    to.raw = power > 0 or node.op.name in SCALE_FREE
    how(to, node)
    if power:
        to.divide(node, power, node.nbytes)


def unsupported(
    node: Tensor, chip: Chip, missing: Missing, brought: Brought = _NONE
) -> str | None:
    """None, or why a node cannot be computed."""
    try:
        lower(Lowering(chip, missing), node, brought=brought)
    except Unsupported as reason:
        return "; ".join((str(reason), *brought.choose(node, chip, missing)[1]))
    return None


def lowered(
    graph: SplitGraph,
    chip: Chip,
    missing: Missing,
    scratch: Scratch,
    kept: Keep,
    brought: Brought = _NONE,
    laid: Laid | None = None,
) -> Lowering:
    """The launches of a whole split, of a step whose cells are laid out in blocks or not."""
    reads = Reads.of(graph)
    to = Lowering(chip, missing, graph.slots, reads.last, scratch, kept=kept, laid=laid)
    to.pairs, to.rounded = pairs(reads, to), rounded(reads, to)
    if laid is not None:
        found = blocked(reads, to).items()
        to.blocks = {n: c for n, c in found if brought.choose(n, chip, missing)[0] is None}
    unread = {t.storage for node in to.blocks for t in node.inputs[1:3]}
    for first, nodes, fused in steps(reads, to):
        if fused is not None and not any(brought.choose(n, chip, missing)[0] for n in nodes):
            with contextlib.suppress(Unsupported), to.attempt():
                to.begin(nodes[-1], first)
                fused(to)
                continue
        for i, node in enumerate(nodes, first):
            if node not in unread:
                lower(to, node, i, brought)
    return to


def _results(graph: SplitGraph) -> Results:
    """The float results of a split that are read by the host, or by other devices."""
    found: dict[NpuBuffer, dict[int, np.dtype[Any]]] = {}
    for t in graph.outputs:
        slot, kind = graph.slots[t.storage], np.dtype(t.dtype.numpy)
        if t.storage.role is Role.NODE and kind.kind == "f":
            assert isinstance(slot.buffer, NpuBuffer)
            found.setdefault(slot.buffer, {})[slot.offset + t.offset] = kind
    return tuple(found.items())


@attrs.define(eq=False)
class Programs:
    """Those of one NPU, by the split's uid and whether cells are in blocks."""

    npu: Npu
    chip: Chip
    memory: NpuMemory
    brought: Brought = _NONE
    debug: Debug = attrs.field(factory=Debug)
    made: dict[Key, Program] = attrs.field(factory=dict, init=False)
    _cells: dict[int, Cells | None] = attrs.field(factory=dict, init=False)
    _current: Program | None = attrs.field(default=None, init=False)  # that runs, or ran last
    constants: dict[Hashable, Region] = attrs.field(factory=dict, init=False)
    scratch: Room = attrs.field(init=False)
    workspace: Room = attrs.field(init=False)
    # of the models for which scratch memory was taken at load: it is not given back
    _users: weakref.WeakSet[Buffer] = attrs.field(factory=weakref.WeakSet, init=False)
    _gathers: bool = attrs.field(default=False, init=False)  # whatever the chip can
    _refused: int = attrs.field(default=-1, init=False)  # how often caches had moved then

    def __attrs_post_init__(self) -> None:
        self.scratch, self.workspace = Room(self.memory), Room(self.memory)
        self.memory.spare = self._spare
        self.npu.on_fault = Blame(self.npu, self.workspace)

    def prepare(self, graph: SplitGraph) -> None:
        """Takes the memory of a split; it stays for as long as the first of its weights."""
        self.npu.use()
        launches = self._laid_out(graph)[0].launches
        if cells := self._cells_of(graph):  # in blocks it may need more, once caches have grown
            with contextlib.suppress(Unsupported):
                self._laid_out(graph, Laid.new(self.memory, cells.tensor, ahead=True))
            for t, slot in graph.slots.items():
                if t.role is Role.STATE and t.dtype is F16:
                    assert isinstance(slot.buffer, NpuBuffer)
                    slot.buffer.values = np.dtype(np.float16)
        if most := max((workspace(launch, self.npu) for launch in launches), default=0):
            self.workspace.at_least(most)
        for t, slot in graph.slots.items():
            if t.role is Role.WEIGHT:
                if slot.buffer not in self._users:
                    self._tell_of_states(graph)
                self._users.add(slot.buffer)
                return

    def _tell_of_states(self, graph: SplitGraph) -> None:
        """Whether they can grow to the end, now that a model has what prompts need."""
        states = ((t, s.buffer) for t, s in graph.slots.items() if t.role is Role.STATE)
        left, free = sum(max(t.nbytes - b.nbytes, 0) for t, b in states), self.memory.free
        if left > free:
            told = "the context of cann:%d ends where its memory does: all of it would take %d "
            told += "bytes more, and %d are free"
            log.warning(told, self.npu.index, left, free)

    def run(self, graph: SplitGraph) -> None:
        cells = self._cells_of(graph)
        found = cells.blocks() if cells else None
        key = graph.uid, found is not None
        program = self._current = self.made.get(key)
        states = program.written if program else written(graph.nodes, graph.slots)
        for rows in states:
            if found and cells and cells.cache in rows.states:
                self._make_room_for_blocks(rows, found.rows)
            rows.make_room()
        if program is not None and program.moved not in (None, self.memory.moved):
            self._drop(key)  # what it knows of states lies elsewhere
            program = None
        self._current = program = program or self._compile(graph, states, found is not None)
        self.made.pop(key, None)
        self.made[key] = program  # the last one again
        if not program.ready:
            self._make_room(program)
        record = program.to_record and self.chip.capture
        if record:
            self._make_room_to_record()
        if program.laid is not None and found is not None:
            program.laid.put(self.npu, found)
        for buffer, kinds in program.results:
            buffer.results = kinds
        self.npu.flush()
        if self.debug:
            self.debug.run(program, self.npu, self.workspace)
            return
        since = time.monotonic()
        program.run(self.npu, self.workspace, record)
        self.npu.launched.append(Launched(program, graph, since))

    def _make_room_for_blocks(self, rows: Written, wanted: int) -> None:
        """More than is written, if there is memory for it: else rows are gathered, and nobody
        asks again until some cache has grown."""
        if self._refused == self.memory.moved:
            return
        try:
            rows.make_room(wanted)
        except OutOfMemoryError:
            self._refused = self.memory.moved

    def _cells_of(self, graph: SplitGraph) -> Cells | None:
        """What it gathers, where it is of use to know how that lies. No block is read any more
        once some rows may not be finite: the mask would not hide them."""
        if self.npu.doubtful:
            if self.chip.blocks and not self._gathers:
                told = "cann:%d: keys and values are gathered from now on, after %s"
                log.warning(told, self.npu.index, self.npu.doubtful)
                self._gathers = True
            for key in [key for key in self.made if key[1]]:
                self._drop(key)
            return None
        if graph.uid not in self._cells:
            self._cells[graph.uid] = Cells.of(graph) if self.chip.blocks else None
        return self._cells[graph.uid]

    def _make_room_to_record(self) -> None:
        """The recordings that were not used for longest go."""
        recorded = [p for p in self.made.values() if p.recording]
        for old in recorded[: max(len(recorded) + 1 - MOST, 0)]:
            self.npu.wait()
            old.forget_recording(self.npu)

    def _spare(self) -> bool:
        """Programs that do not run go, with their memory: they are made again when they are
        wanted."""
        idle = {key: p for key, p in self.made.items() if p is not self._current}
        if idle:
            self.npu.wait()
        for key, program in idle.items():
            del self.made[key]
            program.drop(self.npu)
        unused = not self._users and self.scratch.nbytes + self.workspace.nbytes > 0
        if unused:
            self.npu.wait()
            self.scratch.give_back()
            self.workspace.give_back()
        return bool(idle) or unused

    def _make_room(self, program: Program) -> None:
        """The vendor's pool of executors has an end: those not used for longest go."""
        ready = [p for p in self.made.values() if p.ready]
        left = EXECUTORS - len(program.launches) - sum(len(p.launches) for p in ready)
        for old in ready if left < 0 else ():
            self.npu.wait()
            old.drop(self.npu)
            left += len(old.launches)
            if left >= 0:
                break

    def _compile(
        self, graph: SplitGraph, states: tuple[Written, ...], in_blocks: bool
    ) -> Program:
        cells, laid = self._cells_of(graph) if in_blocks else None, None
        try:
            laid = Laid.new(self.memory, cells.tensor) if cells else None
            to, region = self._laid_out(graph, laid, spare=4)
        except (Unsupported, OutOfMemoryError):  # gathering may take less, and everything
            if cells is None:
                raise
            laid = None
            to, region = self._laid_out(graph, spare=4)
        knows = any(t.role is Role.STATE for t in graph.slots)
        moved = self.memory.moved if knows else None
        laid = laid if to.blocks else None
        results = _results(graph) if self._cells_of(graph) else ()
        program = Program(tuple(to.launches), region, states, moved, laid, results)
        self.debug.show(program, graph, to.scratch)
        return program

    def _laid_out(
        self, graph: SplitGraph, laid: Laid | None = None, spare: int = 0
    ) -> tuple[Lowering, Region | None]:
        """Its launches, and the scratch memory that they lie in; where there is not enough, one
        `spare`th more is taken, if it can be had."""

        def made(scratch: Scratch) -> Lowering:
            given = (self.chip, self.npu.acl.missing, scratch, self._constant, self.brought)
            return lowered(graph, *given, laid)

        to = made(Scratch())
        needed = to.scratch.peak + to.scratch.lasting
        if not needed:
            return to, None
        if needed > self.scratch.nbytes:  # else each would keep what it began with
            self._current = None
            self._spare()
            with contextlib.suppress(OutOfMemoryError):
                self.scratch.at_least(needed + (needed // spare if spare else 0))
        region = self.scratch.at_least(needed)
        return made(Scratch(region.address, to.scratch.peak)), region

    def _constant(self, key: Hashable, values: np.ndarray) -> int:
        """Where these values are; written there when they are asked for first."""
        if key not in self.constants:
            size = padded(values.nbytes)
            self.constants[key] = region = self.memory.take(size, 0, "constants")
            self.npu.copy(region.address, values.ctypes.data, values.nbytes, TO_DEVICE)
        return self.constants[key].address

    def forget(self, uid: int) -> None:
        self._cells.pop(uid, None)
        for in_blocks in (False, True):
            self._drop((uid, in_blocks))

    def _drop(self, key: Key) -> None:
        if (program := self.made.pop(key, None)) is not None:
            self.npu.wait()
            program.drop(self.npu)
            self._current = None if program is self._current else self._current

    def clear(self) -> None:
        """Drops all; the device has been waited for."""
        while self.made:
            self.made.popitem()[1].drop(self.npu)
        self._cells.clear()
        self.constants.clear()

    def counts(self) -> Mapping[str, int]:
        """What `status` tells."""
        launches = sum(len(program.launches) for program in list(self.made.values()))
        recorded = sum(program.recording is not None for program in list(self.made.values()))
        return {"programs": len(self.made), "launches": launches, "recorded": recorded}
