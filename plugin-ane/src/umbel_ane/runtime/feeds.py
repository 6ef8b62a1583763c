"""Fills the surfaces of a program from the core's memory: one pass that turns, casts and pads.

What was filled stays there. So where a state has not changed since the last step nothing is
done, and of a cache whose table moved on by a token only the new rows are copied: the table of
a step is that of the one before, one place further on, as the step's own cells come last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np
from umbel.errors import DeviceError
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, Slot

from umbel_ane.compiler.ports import Between, Held, OneHot, Port, Rows, Source, Watched, Whole
from umbel_ane.drivers import Surface
from umbel_ane.memory import AneBuffer, AneWeight

KINDS: Mapping[str, np.dtype] = {
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
}
Slots = Mapping[Tensor, Slot]


def nbytes(port: Port) -> int:
    """What its values take, packed."""
    return math.prod(port.shape) * KINDS[port.dtype].itemsize


class Feed(Protocol):
    """What fills one surface before each evaluation."""

    def fill(self) -> None: ...


def window(tensor: Tensor, slots: Slots) -> np.ndarray:
    """The values of a tensor (or of a view) as they lie in the core's memory."""
    slot, kind = slots[tensor.storage], tensor.dtype.numpy
    memory = slot.buffer.map("r")
    made: np.ndarray = np.ndarray(
        tensor.shape, kind, memory, slot.offset + tensor.offset, tensor.strides
    )
    return made


def mark(buffer: Buffer) -> int | None:
    """How often it was written; None where nobody knows."""
    return buffer.mark if isinstance(buffer, AneBuffer) else None


@attrs.frozen(eq=False)
class Target:
    """Where values go in a surface: an array of their shape, with the padding left out."""

    surface: Surface
    kind: np.dtype
    shape: tuple[int, ...]  # of the values, turned
    strides: tuple[int, ...]  # bytes

    @classmethod
    def of(cls, surface: Surface, port: Port, shape: Sequence[int]) -> Target:
        """Of values of this (turned) shape.

        They fill the port, or its rows but for what is padded at the end of the last axis.
        """
        kind, (*outer, last) = KINDS[port.dtype], port.shape
        pitch, cut = last, 0  # values from one row to the next, axes in front of a row
        cuts = [k for k in range(len(shape) + 1) if _splits(shape, k, outer, last)]
        if math.prod(shape) != math.prod(port.shape) and cuts:
            cut = cuts[0]
        elif math.prod(shape) != math.prod(port.shape):
            msg = f"port {port.name} {list(port.shape)} cannot hold values of {list(shape)}"
            raise ValueError(msg)
        strides = []
        for k in range(len(shape)):
            inner = shape[k + 1 : cut] if k < cut else shape[k + 1 :]
            strides.append(math.prod(inner) * (pitch if k < cut else 1) * kind.itemsize)
        return cls(surface, kind, tuple(shape), tuple(strides))

    def within(self, memory: np.ndarray) -> np.ndarray:
        """The array, in the surface's locked memory."""
        made: np.ndarray = np.ndarray(self.shape, self.kind, memory, 0, self.strides)
        return made

    def back(self, memory: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """The same with its axes as they were before they were turned by `axes`."""
        made: np.ndarray = self.within(memory).transpose(np.argsort(axes))
        return made


def _splits(shape: Sequence[int], cut: int, outer: Sequence[int], last: int) -> bool:
    """Whether the axes before `cut` are the rows of a port, and the others fit into one."""
    return math.prod(shape[:cut]) == math.prod(outer) and math.prod(shape[cut:]) <= last


def feed(source: Source, port: Port, surface: Surface, slots: Slots) -> Feed | None:
    """What fills `surface` for this port; None where another program does."""
    if isinstance(source, Between | Watched):
        return None
    if isinstance(source, Held):
        return HeldFeed(source, Target.of(surface, port, source.shape))
    if isinstance(source, Whole):
        shape = [source.tensor.shape[a] for a in source.axes]
        return WholeFeed(source, Target.of(surface, port, shape), slots)
    plain = plain_shape(source)
    target = Target.of(surface, port, [plain[a] for a in source.axes])
    if isinstance(source, OneHot):
        return OneHotFeed(source, target, slots)
    return RowsFeed(source, target, slots)


def plain_shape(source: Rows | OneHot) -> tuple[int, ...]:
    """The shape of what is gathered, before its axes are turned."""
    if isinstance(source, OneHot):
        return source.ids.size, source.n
    return *source.ids.shape, source.tensor.shape[1]


@attrs.define(eq=False)
class WholeFeed:
    """All values of a storage; a state is only read again after it has changed."""

    source: Whole
    target: Target
    slots: Slots
    _read: np.ndarray = attrs.field(init=False)
    _mark: int | None = attrs.field(default=None, init=False)

    @_read.default
    def _window(self) -> np.ndarray:
        made: np.ndarray = window(self.source.tensor, self.slots).transpose(self.source.axes)
        return made

    def fill(self) -> None:
        tensor = self.source.tensor
        if tensor.role is not Role.STATE:
            with self.target.surface.lock() as memory:
                _put(self.target.within(memory), self._read)
            return
        now = mark(self.slots[tensor].buffer)
        if now is not None and now == self._mark:
            return
        with self.target.surface.lock() as memory:
            into = self.target.within(memory)
            _put(into, self._read)
            _check(into, tensor)
        self._mark = now


@attrs.define(eq=False)
class HeldFeed:
    """A weight that is an input: written once, and again after `stale` was set."""

    source: Held
    target: Target
    stale: bool = True

    def fill(self) -> None:
        if self.stale:
            values = np.asarray(self.source.weight.read())
            with self.target.surface.lock() as memory:
                _put(self.target.within(memory), values.reshape(self.target.shape))
            self.stale = False


@attrs.define(eq=False)
class OneHotFeed:
    """A row for each id, with its one there."""

    source: OneHot
    target: Target
    slots: Slots

    def fill(self) -> None:
        ids = window(self.source.ids, self.slots).reshape(-1)
        with self.target.surface.lock() as memory:
            into = self.target.back(memory, self.source.axes)
            into.fill(0)
            into[np.arange(len(ids)), ids] = 1


@attrs.define(eq=False)
class RowsFeed:
    """Rows of a table by integers: of a weight, decoded as they are read, or of a state."""

    source: Rows
    target: Target
    slots: Slots
    _buffer: Buffer = attrs.field(init=False)
    _ids: np.ndarray | None = attrs.field(default=None, init=False)  # that the surface holds
    _mark: int | None = attrs.field(default=None, init=False)

    @_buffer.default
    def _find(self) -> Buffer:
        return self.slots[self.source.tensor.storage].buffer

    def fill(self) -> None:
        ids = window(self.source.ids, self.slots)
        with self.target.surface.lock() as memory:
            into = self.target.back(memory, self.source.axes)
            if not self._moved_on(ids, into, memory):
                self._gather(ids, into)
        self._ids, self._mark = ids.copy(), mark(self._buffer)

    def _gather(self, ids: np.ndarray, into: np.ndarray) -> None:
        table = self.source.tensor
        if isinstance(self._buffer, AneWeight):
            rows = self._buffer.rows(ids.reshape(-1)).reshape(into.shape)
            _put(into, rows)
            if rows.dtype != into.dtype:
                _check(into, table)
            return
        rows = window(table, self.slots)
        flat = ids.reshape(-1)
        for at in np.ndindex(into.shape[:-2]):  # (..., n, columns): each row of ids
            some = flat if ids.ndim < 2 else ids[at]
            for begin, end, step in stretches(some):
                row = int(some[begin])
                read = rows[row : row + (end - begin)] if step else rows[row]
                into[at][begin:end] = read

    def _moved_on(self, ids: np.ndarray, into: np.ndarray, memory: np.ndarray) -> bool:
        """Where the ids are the last ones, or those from the second on and one more: copies no
        more than is new. What was written since then must not be among the old ones."""
        before = self._ids
        if before is None or not isinstance(self._buffer, AneBuffer):
            return False
        written = self._buffer.since(self._mark)
        if written is None:
            return False
        moved = bool((before[..., 1:] == ids[..., :-1]).all())
        same = not moved and bool((before == ids).all())
        if not (moved or same):
            return False
        old = before if same else before[..., 1:]
        if any(((old >= a) & (old <= b)).any() for a, b in self._rows_of(written)):
            return False
        if not same:
            self._shift(memory, into.strides[-2])
            rows = window(self.source.tensor, self.slots)
            into[..., -1, :] = rows[ids[..., -1]]
        return True

    def _rows_of(self, written: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The first and last row of each piece that was written; neighbours as one.

        Row 0 of a state is nobody's: padding is written there, and masked where it is read.
        """
        table, slot = self.source.tensor, self.slots[self.source.tensor.storage]
        start, size = slot.offset + table.offset, table.strides[0]
        found: list[tuple[int, int]] = []
        for at, n in written:
            first, last = (at - start) // size, (at + n - 1 - start) // size
            if last == 0:
                continue
            if found and found[-1][1] == first - 1:
                found[-1] = found[-1][0], last
            else:
                found.append((first, last))
        return found

    def _shift(self, memory: np.ndarray, stride: int) -> None:
        """Everything one id forward. Values are packed, so that all of them lie one stride
        before where they were; the last id of each row is written anew."""
        shape, strides = self.target.shape, self.target.strides
        size = shape[0] * strides[0]
        used = memory[:size]
        if strides[-1] * shape[-1] == strides[-2]:
            used[:-stride] = used[stride:]
            return
        into = self.target.back(memory, self.source.axes)  # padded: not into the padding
        into[..., :-1, :] = into[..., 1:, :].copy()


def stretches(ids: np.ndarray) -> list[tuple[int, int, int]]:
    """(begin, end, step): parts of ids that rise by one (step 1), or stay the same (0)."""
    found: list[tuple[int, int, int]] = []
    steps = np.diff(ids)
    begin, n = 0, len(ids)
    while begin < n:
        step = int(steps[begin]) if begin < n - 1 else 1
        if step not in (0, 1):
            end = begin + 1
            step = 1
        else:
            other = np.flatnonzero(steps[begin:] != step)
            end = begin + int(other[0]) + 1 if len(other) else n
        found.append((begin, end, step))
        begin = end
    return found


def _put(into: np.ndarray, values: np.ndarray) -> None:
    """What is beyond float16 becomes infinite, without a warning of NumPy's."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(into, values, casting="same_kind")


def _check(values: np.ndarray, tensor: Tensor) -> None:
    """Values that a program reads must be within float16's range."""
    if not np.isfinite(values).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        msg = f"{tensor.label!r} holds a value that is too large for float16, or not finite"
        do = "run the model on another device, or take another file"
        raise DeviceError(msg, where=tensor.label, got=f"first at {at}", do=do)
