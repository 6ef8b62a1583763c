"""What `-O cann.debug` does: launches that are waited for one by one, told, and looked at.

| mode | |
|---|---|
| `sync` | each launch is waited for, as in the other modes: what fails is named at once |
| `log` | a line for each launch, with its time; the libraries' own log |
| `dump` | what each split became, once; of a run the first launch whose result is not finite |

Unlike `--check`, which computes node by node and so fuses nothing, this is of what else runs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np
from umbel.graph import Role, Tensor
from umbel.hookspecs import SplitGraph

from umbel_cann.blame import name, one_by_one, operator
from umbel_cann.chips import SCATTER
from umbel_cann.program import Call, Launch, Program, Room
from umbel_cann.runtime import TO_HOST, Npu
from umbel_cann.scratch import Scratch
from umbel_cann.views import BYTES, FLOAT, FLOAT16, View

MODES = ("sync", "log", "dump")
_OFF = {"off", ""}
VENDOR = {"ASCEND_GLOBAL_LOG_LEVEL": "2", "ASCEND_SLOG_PRINT_TO_STDOUT": "1"}  # from warnings
_FLOATS: Mapping[int, Any] = {FLOAT: np.dtype(np.float32), FLOAT16: np.dtype(np.float16)}
_RESULTS = {"AddRmsNorm": 3, "GeGluV3": 2, "RmsNorm": 2, "Sort": 2}  # of others it is one

log = logging.getLogger("umbel.cann")


def modes(text: str) -> str:
    """The option, where it is some of `MODES` with commas between them, or off."""
    if set(text.split(",")) - {*MODES, *_OFF}:
        msg = "no such mode"
        raise ValueError(msg)
    return text


@attrs.frozen
class Debug:
    """What a user wants to see of launches."""

    modes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str) -> Debug:
        return cls(frozenset(text.split(",")) - _OFF)

    def __bool__(self) -> bool:
        return bool(self.modes)

    def prepare(self) -> None:
        """Before the libraries are initialised: their log, where the user has said nothing."""
        for variable, value in VENDOR.items() if "log" in self.modes else ():
            os.environ.setdefault(variable, value)

    def run(self, program: Program, npu: Npu, room: Room) -> None:
        """A step of a program, launch by launch."""
        looks, since = "dump" in self.modes, time.perf_counter()
        for what, launch in one_by_one(program, npu, room):
            took = time.perf_counter() - since
            if "log" in self.modes:
                log.warning("launched and done in %.0f us: %s", took * 1e6, what)
            if looks and (at := not_finite(npu, launch)) is not None:
                log.warning("values that are not finite, first at %s: %s", at, what)
                looks = False  # what comes of them is no news
            since = time.perf_counter()

    def show(self, program: Program, graph: SplitGraph, scratch: Scratch) -> None:
        """What a split was lowered to."""
        if "dump" in self.modes:
            text = "\n".join(dump(program, graph, scratch))
            log.warning("what is launched, and where it lies: %s", text)


def not_finite(npu: Npu, launch: Launch) -> list[int] | None:
    """Where a result of a launch is not; rows of states were made before, and looked at."""
    if not isinstance(launch, Call) or launch.operator == SCATTER:
        return None
    views = [a for a in launch.arguments if isinstance(a, View)]
    inside = launch.operator.startswith("Inplace")
    results = views[:1] if inside else views[-_RESULTS.get(launch.operator, 1) :]
    for view in results:
        if view.type in _FLOATS:
            finite = np.isfinite(_values(npu, view))
            if not finite.all():
                return [int(i) for i in np.argwhere(~finite)[0]]
    return None


def _values(npu: Npu, view: View) -> np.ndarray:
    raw = np.empty(view.end - view.start, np.uint8)
    npu.copy(raw.ctypes.data, view.start, raw.nbytes, TO_HOST)
    strides = [s * BYTES[view.type] for s in view.strides]
    values: np.ndarray = np.ndarray(view.shape, _FLOATS[view.type], raw, 0, strides)
    return values


def dump(program: Program, graph: SplitGraph, scratch: Scratch) -> Iterator[str]:
    """Lines: each node with its result, and what it became."""
    made: dict[Tensor, list[tuple[int, Launch]]] = {}
    for i, launch in enumerate(program.launches, 1):
        made.setdefault(launch.node, []).append((i, launch))
    place = partial(_place, _buffers(program, graph))
    yield f"split {graph.uid}: {len(graph.nodes)} nodes, {len(program.launches)} launches"
    yield f"scratch: {scratch.peak} bytes for one node, {scratch.lasting} that last longer"
    for node in graph.nodes:
        slot = graph.slots[node.storage]
        at = place(int(slot.buffer.handle) + slot.offset + node.offset)
        kind = "" if node in made else ", within another"
        yield f"{name(node)}: {node.dtype.name} {list(node.shape)} at {at}{kind}"
        for i, launch in made.get(node, ()):
            yield f"  {i}: {operator(launch, lambda view: f' at {place(view.start)}')}"


def _buffers(program: Program, graph: SplitGraph) -> dict[str, list[tuple[int, int]]]:
    """Where they begin and end, by their names; what lies in none is a constant."""
    found: dict[str, list[tuple[int, int]]] = {}
    for t, slot in graph.slots.items():
        begin = int(slot.buffer.handle)
        own = t.role in (Role.WEIGHT, Role.STATE)
        parts = found.setdefault(t.label if own else "compute", [])
        if (whole := (begin, begin + slot.buffer.nbytes)) not in parts:
            parts.append(whole)
    if (region := program.scratch) is not None:
        found["scratch"] = [(region.address, region.address + region.nbytes)]
    if (laid := program.laid) is not None:
        found["blocks"] = [(laid.region.address, laid.region.address + laid.region.nbytes)]
    return found


def _place(buffers: Mapping[str, list[tuple[int, int]]], address: int) -> str:
    for buffer, parts in buffers.items():
        for begin, end in parts:
            if begin <= address < end:
                return f"{buffer}+{address - begin}"
    return "constant"
