"""Launches that a chip has recorded, and runs again as one.

While a stream is captured nothing but launches may go to it, and those alone are made here:
executors are ready, their workspace is there, and the device's lock keeps others from its
stream. In the relaxed mode what other threads do elsewhere is neither refused nor harmful.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable

import attrs
from umbel.errors import DeviceError

from umbel_cann.heap import Region
from umbel_cann.runtime import Npu

MOST = 16  # recordings of a device that are kept: what one takes of the chip is told nowhere
RELAXED = 2  # aclmdlRICaptureMode
_BEGIN, _END = "aclmdlRICaptureBegin", "aclmdlRICaptureEnd"
_RUN, _DROP = "aclmdlRIExecuteAsync", "aclmdlRIDestroy"

log = logging.getLogger("umbel.cann")


@attrs.frozen(eq=False)
class Recording:
    """What was captured from a stream, and the workspace that it uses."""

    model: int
    stream: int
    workspace: Region | None

    def run(self, npu: Npu) -> None:
        npu.busy = True
        npu.acl.call(_RUN, self.model, npu.stream)

    def drop(self, npu: Npu) -> None:
        """It is not under way any more."""
        npu.acl.function(_DROP)(self.model)


def record(npu: Npu, workspace: Region | None, launch: Callable[[], None]) -> Recording | None:
    """What `launch` puts into the stream, which then has not run; None where that fails, with
    the stream as it was."""
    acl, model = npu.acl, ctypes.c_void_p()
    try:
        acl.call(_BEGIN, npu.stream, RELAXED)
        try:
            launch()
        finally:
            code = acl.function(_END)(npu.stream, ctypes.byref(model))
            if code:  # nobody knows whether it still is captured
                npu.leave_stream()
        if code:
            raise acl.error(_END, code)
    except BaseException as error:
        acl.recent()  # what the end said of it, too: nobody shall read of that later
        if model.value:
            acl.function(_DROP)(model.value)
        if not isinstance(error, DeviceError):
            raise
        text = " ".join(str(error).split())
        log.debug("launches of cann:%d are not captured: %s", npu.index, text)
        return None
    return Recording(int(model.value or 0), npu.stream, workspace)
