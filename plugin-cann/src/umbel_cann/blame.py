"""Which launch failed: a stream only tells that one did, at the next wait.

So what was launched since the last wait is run again, one by one, each waited for. That is safe
where a step gives the same from the same inputs: a state that is written before it is read is
written with the same values again. It is not done where a state was read first, as recurrent
ones are, nor where the step has overwritten inputs that the host does not know any more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import numpy as np
from umbel.errors import CancelledError, DeviceError, UmbelError
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot, SplitGraph

from umbel_cann.acl import codes
from umbel_cann.program import Call, Launch, Program, Room, RowCopies
from umbel_cann.runtime import Npu
from umbel_cann.views import BOOL, INT4, INT8, INT64, NAMES, Argument, View, Views

_TYPES = {**NAMES, INT4: "i4", INT8: "i8", INT64: "i64", BOOL: "bool"}
_HANGS = "raise -O cann.timeout if the step is long; else -O cann.debug=sync names what hangs"
_NOT_NAMED = "if it comes again, -O cann.debug=sync names the node"

log = logging.getLogger("umbel.cann")


@attrs.frozen(eq=False)
class Launched:
    """A program that was put into the stream."""

    program: Program
    graph: SplitGraph
    since: float  # of time.monotonic


@attrs.frozen(eq=False)
class Blame:
    """Adds to the error of a wait what it is about."""

    npu: Npu
    workspace: Room

    def __call__(self, error: DeviceError, code: int, launched: Sequence[Launched]) -> None:
        launched = [each for each in launched if each.program.launches]
        if not launched:
            return
        error.where = f"{_span(launched)} on cann:{self.npu.index}"
        if code == codes.SYNC_TIMEOUT:
            ago = f"launched {time.monotonic() - launched[0].since:.1f} s ago"
            error.got = f"{ago}; {error.got}" if error.got else ago
            error.expected, error.do = f"an end within {self.npu.timeout:g} s", _HANGS
        elif code // 100000 == 5:
            inputs = again(launched, self.npu.sent)
            if self.npu.pending:  # rows are copied to where the host says that they go now
                inputs = "what comes next has its inputs already"
            if isinstance(inputs, str):
                why = f"it cannot be run again: {inputs}"
            else:
                log.warning("cann:%d: a step is run again to see what failed", self.npu.index)
                why = self._run_again(error, launched, inputs)
            if why:
                error.where = f"{error.where}; {why}"
                error.do = f"{error.do}; {_NOT_NAMED}" if error.do else _NOT_NAMED

    def _run_again(
        self, error: DeviceError, launched: Sequence[Launched], inputs: Mapping[int, np.ndarray]
    ) -> str:
        """Names the launch that fails in the error; or why that is not known."""
        npu, end = self.npu, time.monotonic() + self.npu.timeout
        try:
            for address, data in inputs.items():
                npu.put(address, data, None)
            npu.flush()
            for each in launched:
                for _ in one_by_one(each.program, npu, self.workspace):
                    if time.monotonic() > end:
                        return "it did not fail again before the time was over"
        except CancelledError:
            return "it was cancelled while it was run again"
        except DeviceError as found:
            if npu.busy or not found.where:  # nobody has waited for a launch
                with contextlib.suppress(UmbelError):
                    npu.wait()
                return f"it cannot be run again: {found.what}"
            error.where = found.where
            if found.what != error.what:
                error.got = f"{error.got}; when it was run again: {found.what}"
            return ""
        return "it did not fail when it was run again, launch by launch"


def one_by_one(program: Program, npu: Npu, room: Room) -> Iterator[tuple[str, Launch]]:
    """Launches, and waits each time; then says what it was. What fails is named."""
    npu.use()
    program.ready = True
    for i, launch in enumerate(program.launches, 1):
        if npu.cancelled:
            msg = "the step was cancelled"
            raise CancelledError(msg)
        what = f"launch {i} of {len(program.launches)} on cann:{npu.index}: {told(launch)}"
        npu.busy = True
        try:
            launch.run(npu, room)
            npu.wait()
        except DeviceError as error:
            error.where = what
            raise
        yield what, launch


# may it be run again?


def again(
    launched: Sequence[Launched], sent: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray] | str:
    """What must be written again before that, by address; or why it must not be run."""
    made: dict[Tensor, Slot] = {}
    taken: dict[Tensor, Slot] = {}  # what was there before
    states: dict[Tensor, bool] = {}  # whether what they had before was read
    for each in launched:
        for node in each.graph.nodes:
            assert node.op is not None
            for i, t in enumerate(node.inputs):
                storage, slots = t.storage, each.graph.slots
                if storage.role is Role.STATE:
                    if i in node.op.mutates and states.get(storage):
                        return f"it changes {storage.label}, which it reads before"
                    states.setdefault(storage, i not in node.op.mutates)
                elif storage.role in (Role.INPUT, Role.NODE) and storage not in made:
                    taken[storage] = slots[storage]
            if node.base is None:
                made[node] = each.graph.slots[node]
    written = sorted(_range(t, slot) for t, slot in made.items())
    restored = {}
    for t, slot in taken.items():
        begin, end = _range(t, slot)
        if any(a < end and begin < b for a, b in written):
            data = sent.get(begin)
            if data is None or data.nbytes != t.nbytes:
                return f"its input {t.label} is overwritten"
            restored[begin] = data
    return restored


def _range(t: Tensor, slot: Slot) -> tuple[int, int]:
    begin = int(slot.buffer.handle) + slot.offset
    return begin, begin + t.nbytes


# what things are called


def told(launch: Launch, place: Callable[[View], str] = lambda view: "") -> str:
    """A node, and what it became: an operator with the tensors that it is given."""
    return f"{name(launch.node)}: {operator(launch, place)}"


def name(node: Tensor) -> str:
    assert node.op is not None
    return f"{node.label} ({node.op.name})"


def operator(launch: Launch, place: Callable[[View], str]) -> str:
    if isinstance(launch, Call):
        views = (text for a in launch.arguments for text in _tensors(a, place))
        return " ".join((f"aclnn{launch.operator}", ", ".join(views)))
    assert isinstance(launch, RowCopies)
    return f"copies of rows {', '.join(_tensors(Views((launch.source, launch.target)), place))}"


def _tensors(argument: Argument, place: Callable[[View], str]) -> Iterator[str]:
    views = argument.views if isinstance(argument, Views) else (argument,)
    for view in views:
        if isinstance(view, View):
            strides = "" if view.dense else f" by {list(view.strides)}"
            yield f"{_TYPES[view.type]} {list(view.shape)}{strides}{place(view)}"


def _span(launched: Sequence[Launched]) -> str:
    first, last = launched[0].program.launches[0], launched[-1].program.launches[-1]
    count = sum(len(each.program.launches) for each in launched)
    return f"{name(first.node)} to {name(last.node)}, {count} launches"
