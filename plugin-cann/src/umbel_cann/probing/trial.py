"""One probe on a device: both phases, the wait, and the comparison."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np
from umbel.errors import DeviceError, OutOfMemoryError

from umbel_cann import heap
from umbel_cann.acl import codes
from umbel_cann.acl.prototypes import names
from umbel_cann.probing.probe import Data, Probe, Step, Views
from umbel_cann.runtime import TO_DEVICE, TO_HOST, Npu
from umbel_cann.views import (
    BOOL,
    FLOAT,
    FLOAT16,
    INT4,
    INT8,
    INT32,
    INT64,
    Argument,
    Descriptors,
    View,
    contiguous,
)
from umbel_cann.views import Views as Members

SIZE = 2 << 20  # bytes of device memory that the tensors of a probe may take
NUMBERS = {"float32": FLOAT, "float16": FLOAT16, "int8": INT8, "int32": INT32}
NUMBERS |= {"int64": INT64, "bool": BOOL}
WITHIN = {"f16": 1e-2, "f32": 1e-3}
THREAD_LOCAL = 1  # mode of a capture

_PLAIN = {
    161001: "it refuses its arguments",
    161002: "it refuses its arguments",
    361001: "its kernel cannot be started",
    561000: "the library failed within it",
    561003: "the chip has no kernel for it",
    561103: "the chip has no kernel for it",
    561112: "its kernel package is not installed",
}


class Refused(Exception):  # noqa: N818  an answer
    """Why a probe failed."""


@attrs.frozen(eq=False)
class Placed:
    """A tensor in the device's memory."""

    data: Data
    view: View
    plain: np.ndarray  # in the order of memory
    order: tuple[int, ...]  # which axis of the array each axis of `plain` is


@attrs.define(eq=False)
class Trial:
    """An NPU with a little memory for probes."""

    npu: Npu
    _base: int = attrs.field(init=False)
    _used: int = 0

    def __attrs_post_init__(self) -> None:
        self._base = self.npu.allocate(SIZE)

    def why_not(self, probe: Probe) -> str | None:
        """None where it works; `OutOfMemoryError` says nothing of the operator."""
        for operator in dict.fromkeys(step[0] for step in probe.steps):
            if self.npu.acl.missing(operator):
                return "it is not in this version of CANN"
        try:
            self._run(probe)
        except Refused as refused:
            return str(refused)
        except OutOfMemoryError:
            raise
        except DeviceError as error:
            return error.what
        return None

    def close(self) -> None:
        self._free(self._base)

    def _run(self, probe: Probe) -> None:
        self._used = 0
        placed: dict[int, Placed] = {}
        with contextlib.ExitStack() as after:
            if probe.captured:
                self._captured([self._prepared(s, placed, after) for s in probe.steps])
            else:
                for step in probe.steps:
                    self._prepared(step, placed, after)()
            self._wait()
            within = probe.within or WITHIN.get(probe.dtype, 0)
            for one in placed.values():
                if one.data.after is not None:
                    self._compare(one, within)

    # calls

    def _prepared(
        self, step: Step, placed: dict[int, Placed], after: contextlib.ExitStack
    ) -> Callable[[], None]:
        """Phase 1; what is given back is phase 2. What both need goes with `after`."""
        operator, *given = step
        made = Descriptors(self.npu.acl)
        after.callback(made.drop)
        arguments = [self._argument(a, placed) for a in given]
        first, second = names(operator)
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        ends = ctypes.byref(size), ctypes.byref(executor)
        self._ask(self.npu.acl.function(first), *made.of(tuple(arguments)), *ends)
        workspace = None
        if size.value:
            workspace = self.npu.allocate(size.value)
            after.callback(self._free, workspace)
        call = self.npu.acl.function(second)
        return partial(self._launch, call, workspace, size.value, executor)

    def _launch(self, call: Any, *given: Any) -> None:
        self.npu.busy = True
        self._ask(call, *given, self.npu.stream)

    def _ask(self, function: Any, *given: Any) -> None:
        if code := function(*given):
            self.npu.acl.recent()  # it is told by its code
            msg = f"{_PLAIN.get(code, 'it fails')}: {codes.name(code)}"
            raise Refused(msg)

    def _captured(self, launches: list[Callable[[], None]]) -> None:
        acl, stream = self.npu.acl, self.npu.stream
        self._wait()
        try:
            acl.call("aclmdlRICaptureBegin", stream, THREAD_LOCAL)
        except DeviceError:
            for launch in launches:  # which uses up what phase 1 made
                launch()
            raise
        try:
            for launch in launches:
                launch()
        finally:
            model = ctypes.c_void_p()
            end = "aclmdlRICaptureEnd"
            code = acl.function(end)(stream, ctypes.byref(model))
            self.npu.busy = False
        if code:
            raise acl.error(end, code)
        try:
            self.npu.busy = True
            acl.call("aclmdlRIExecuteAsync", model, stream)
            self._wait()
        finally:
            acl.call("aclmdlRIDestroy", model)

    def _wait(self) -> None:
        self.npu.wait("its end")

    def _free(self, address: int) -> None:
        with contextlib.suppress(DeviceError):
            self._wait()
        self.npu.free(address)

    # memory

    def _argument(self, given: Any, placed: dict[int, Placed]) -> Argument:
        if isinstance(given, Views):
            return Members(tuple(self._view(array, placed) for array in given.arrays))
        if isinstance(given, (np.ndarray, Data)):
            return self._view(given, placed)
        argument: Argument = given
        return argument

    def _view(self, given: np.ndarray | Data, placed: dict[int, Placed]) -> View:
        """What comes twice lies in one place."""
        if id(given) not in placed:
            data = given if isinstance(given, Data) else Data(given)
            placed[id(given)] = self._place(data)
        return placed[id(given)].view

    def _place(self, data: Data) -> Placed:
        shown = data.after if data.before is None else data.before
        assert shown is not None
        order = tuple(sorted(range(shown.ndim), key=lambda axis: -shown.strides[axis]))
        plain = np.ascontiguousarray(shown.transpose(order))
        raw = plain.view(np.uint8).reshape(-1) if not data.int4 else _packed(plain)
        if data.before is None:
            raw = np.full_like(raw, 0xFF)
        address = self._base + self._used
        self._used += heap.placed(raw.nbytes)
        assert self._used <= SIZE
        self.npu.copy(address, raw.ctypes.data, raw.nbytes, TO_DEVICE)
        number = INT4 if data.int4 else NUMBERS[plain.dtype.name]
        strides = contiguous(plain.shape)
        view = View(number, plain.shape, strides, address, 0, plain.size, data.format)
        return Placed(data, view.permuted(*np.argsort(order).tolist()), plain, order)

    def _compare(self, one: Placed, within: float) -> None:
        got, expected = np.empty_like(one.plain), one.data.after
        assert expected is not None
        self.npu.copy(got.ctypes.data, one.view.address, got.nbytes, TO_HOST)
        expected = expected.transpose(one.order)
        if expected.dtype.kind in "ib":
            right = np.array_equal(got, expected)
        else:
            wide = expected.astype(np.float64)
            off = np.abs(got.astype(np.float64) - wide).max()
            right = bool(off <= within * max(1.0, np.abs(wide).max()))  # not so of NaN
        if not right:
            msg = "it computes wrong numbers"
            raise Refused(msg)


def _packed(values: np.ndarray) -> np.ndarray:
    """Two 4-bit numbers in a byte, the first one low."""
    bits = values.reshape(-1, 2).view(np.uint8) & 15
    return bits[:, 0] | bits[:, 1] << 4
