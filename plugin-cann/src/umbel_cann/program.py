"""A split as a list of launches, made once for each `SplitGraph.uid` and run many times."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError
from umbel.graph import Tensor

from umbel_cann.acl import Acl
from umbel_cann.acl.prototypes import names
from umbel_cann.capture import Recording, record
from umbel_cann.heap import Region
from umbel_cann.memory import NpuBuffer, NpuMemory
from umbel_cann.paging import Laid
from umbel_cann.runtime import WITHIN, Npu
from umbel_cann.states import Written
from umbel_cann.views import Argument, Descriptors, View

_AGAIN = "aclSetAclOpExecutorRepeatable"


# The second phase of an operator, the bytes of its workspace, its executor, and whose it is.
Kept: TypeAlias = "tuple[Any, int, int, Call]"


# Buffers, and the dtypes of the values in them that are to be finite, by offset.
Results: TypeAlias = "tuple[tuple[NpuBuffer, dict[int, np.dtype[Any]]], ...]"


class Launch(Protocol):
    """One thing that is put into the stream."""

    @property
    def node(self) -> Tensor: ...

    @property
    def by(self) -> str:
        """Whose kernel it is of; empty: the plugin's own."""

    @property
    def kept(self) -> Kept | None:
        """What runs it again, if it is but one foreign call."""

    def run(self, npu: Npu, room: Room) -> None: ...

    def drop(self, npu: Npu) -> None:
        """Gives back what it keeps; it is not under way any more."""


@attrs.define(eq=False)
class Room:
    """Memory that launches share: their order in the stream keeps them apart."""

    memory: NpuMemory
    _region: Region | None = None

    @property
    def nbytes(self) -> int:
        return self._region.nbytes if self._region else 0

    def at_least(self, nbytes: int) -> Region:
        """Who keeps the region keeps its memory, also when others need more."""
        if self._region is None or self._region.nbytes < nbytes:
            had, kept = self.nbytes, weakref.ref(self._region) if self._region else None
            self._region = None  # before there is a new one
            try:
                self._region = self.memory.take(nbytes, 0, "intermediate results")
            except OutOfMemoryError:
                if kept:  # it was taken for steps that still fit
                    self._region = kept() or self.memory.take(had, 0, "intermediate results")
                raise
        return self._region

    def give_back(self) -> None:
        """As far as nobody keeps it."""
        self._region = None


@attrs.define(eq=False)
class Call:
    """An operator with its arguments.

    Its first phase and all descriptors are made at the first run. Where the vendor allows to
    use an executor again, it is kept, and from then on a run is one foreign call.
    """

    operator: str
    arguments: tuple[Argument, ...]
    node: Tensor
    by: str = attrs.field(default="", init=False)
    _second: Any = attrs.field(default=None, init=False)
    _size: int = attrs.field(default=0, init=False)  # of the workspace
    _executor: int = attrs.field(default=0, init=False)  # that is kept
    _made: Descriptors | None = attrs.field(default=None, init=False)
    _once: bool = attrs.field(default=False, init=False)  # it must be made again

    def run(self, npu: Npu, room: Room) -> None:
        if self._executor:
            self._launch(npu, room, self._executor)
            return
        acl, made = npu.acl, Descriptors(npu.acl)
        try:
            executor = self._prepare(acl, made)
            if not self._once and not acl.function(_AGAIN)(executor):
                self._executor, self._made = executor, made
            elif not self._once:
                acl.recent()  # that it must be made again is no error: nobody shall read of it
            self._once = self._made is None
            self._launch(npu, room, executor)
        finally:
            if self._made is None:
                made.drop()  # what was launched keeps what it needs

    @property
    def kept(self) -> Kept | None:
        return (self._second, self._size, self._executor, self) if self._executor else None

    def failed(self, npu: Npu, code: int) -> DeviceError:
        return npu.acl.error(names(self.operator)[1], code)

    def _prepare(self, acl: Acl, made: Descriptors) -> int:
        first, second = names(self.operator)
        self._second = acl.function(second)
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        given = made.of(self.arguments)
        acl.call(first, *given, ctypes.byref(size), ctypes.byref(executor))
        self._size = size.value
        return executor.value or 0

    def _launch(self, npu: Npu, room: Room, executor: int) -> None:
        workspace = room.at_least(self._size).address if self._size else None
        code = self._second(workspace, self._size, executor, npu.stream)
        if code:
            raise self.failed(npu, code)

    def drop(self, npu: Npu) -> None:
        if self._made is not None:
            npu.acl.function("aclDestroyAclOpExecutor")(self._executor)
            self._made.drop()
            self._executor, self._made = 0, None


def workspace(launch: Launch, npu: Npu) -> int:
    """How many bytes it will ask for; nothing is launched or kept."""
    if not isinstance(launch, Call):
        return 0
    acl, made = npu.acl, Descriptors(npu.acl)
    try:
        executor = launch._prepare(acl, made)
        acl.function(_AGAIN)(executor)  # of those it is documented that they can be destroyed;
        acl.function("aclDestroyAclOpExecutor")(executor)  # of others it is tried, nothing more
        acl.recent()
    except DeviceError as error:
        _name(error, launch, npu)
        raise
    finally:
        made.drop()
    return launch._size


@attrs.frozen(eq=False)
class RowCopies:
    """Rows written one by one, to where integers say that the host has written in this step.

    For chips without a scatter. Neighbours go together; of several for one row the last does.
    """

    target: View  # (rows, n)
    source: View  # (m, n), dense
    row: int  # bytes
    integers: Callable[[], np.ndarray | None]
    node: Tensor
    by: str = ""

    @property
    def kept(self) -> None:
        """Where its rows go is only known when it runs."""

    def run(self, npu: Npu, room: Room) -> None:
        ids = self.integers()
        if ids is None or len(ids) != self.source.shape[0]:
            msg = "the rows to write are not known to the host"
            raise DeviceError(msg, where=self.node)
        copy, begin = npu.acl.call, 0
        breaks = np.flatnonzero(np.diff(ids) != 1) + 1
        for end in (*breaks.tolist(), len(ids)):
            over = end < len(ids) and ids[end] == ids[end - 1]  # padding: all to one row
            size = (end - begin - int(over)) * self.row
            to = self.target.start + int(ids[begin]) * self.row
            source = self.source.start + begin * self.row
            if size:
                copy("aclrtMemcpyAsync", to, size, source, size, WITHIN, npu.stream)
            begin = end

    def drop(self, npu: Npu) -> None:
        """It keeps nothing."""


@attrs.define(eq=False)
class Program:
    """The launches of one split, and the memory that they use beside the plan's.

    The first run makes descriptors and executors. The second is recorded, where the chip can
    do that and nothing is to be made or looked up anew; each later one is a single call then.
    """

    launches: tuple[Launch, ...]
    scratch: Region | None
    written: tuple[Written, ...] = ()  # states that it changes
    moved: int | None = None  # how often states had other memory; None: it knows none
    laid: Laid | None = None  # where it reads how cells lie in blocks
    results: Results = ()  # what the host reads of it
    ready: bool = False  # it keeps executors
    recording: Recording | None = None
    recordable: bool = True  # as far as is known
    _kept: tuple[Kept, ...] = ()  # all launches, where each is but one call

    @property
    def to_record(self) -> bool:
        """Whether the next run is to be recorded, on a chip that can."""
        return self.recordable and self.recording is None and bool(self._kept)

    def run(self, npu: Npu, room: Room, record: bool = False) -> None:
        npu.use()
        if npu.cancelled:
            raise _cancelled()
        if self.recording is not None and self.recording.stream != npu.stream:
            self.forget_recording(npu)  # that stream hung and was left behind
        if self.recording is None and record and self.to_record:
            self._record(npu, room)
        if self.recording is not None:
            self._replay(npu, self.recording)
        elif self._kept:
            self._again(npu, self._workspace(room))
        else:
            self._anew(npu, room)

    def _anew(self, npu: Npu, room: Room) -> None:
        self.ready = True
        for launch in self.launches:
            if npu.cancelled:
                raise _cancelled()
            npu.busy = True
            try:
                launch.run(npu, room)
            except DeviceError as error:
                _name(error, launch, npu)
                raise
        kept = [launch.kept for launch in self.launches]
        self._kept = tuple(filter(None, kept)) if all(kept) else ()

    def _workspace(self, room: Room) -> Region | None:
        size = max(size for _, size, _, _ in self._kept)
        return room.at_least(size) if size else None

    def _again(self, npu: Npu, workspace: Region | None) -> None:
        """As little as can be done for each launch: there are hundreds in a step."""
        place, stream = workspace.address if workspace else None, npu.stream
        npu.busy = True
        for second, size, executor, call in self._kept:
            if npu.cancelled:
                raise _cancelled()
            if code := second(place, size, executor, stream):
                error = call.failed(npu, code)
                _name(error, call, npu)
                raise error

    def _record(self, npu: Npu, room: Room) -> None:
        """From here on its workspace must stay where it is: the recording holds it."""
        workspace = self._workspace(room)
        self.recording = record(npu, workspace, partial(self._again, npu, workspace))
        self.recordable = self.recording is not None

    def _replay(self, npu: Npu, recording: Recording) -> None:
        try:
            recording.run(npu)
        except DeviceError as error:
            _name(error, self.launches[0], npu)
            raise

    def forget_recording(self, npu: Npu) -> None:
        """It is not under way any more."""
        if self.recording is not None:
            self.recording.drop(npu)
            self.recording = None

    def drop(self, npu: Npu) -> None:
        """Gives back what it keeps; it can run again."""
        self.forget_recording(npu)
        self.ready, self._kept = False, ()
        for launch in self.launches:
            launch.drop(npu)


def _cancelled() -> CancelledError:
    return CancelledError("the step was cancelled")


def _name(error: DeviceError, launch: Launch, npu: Npu) -> None:
    what = f"{launch.node.label}, {launch.by}" if launch.by else launch.node.label
    error.where = error.where or f"{what}, on cann:{npu.index}"
