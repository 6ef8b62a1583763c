"""The process and its NPUs: initialised once, late, and given back in the right order.

Whatever a library ties to a thread is its current context; a device's own is made current
before every call on another thread. In a forked child nothing of this works any more: there
every call is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from umbel.errors import CancelledError, DeviceError, UmbelError

from umbel_cann.acl import Acl, codes
from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.heap import placed

HUGE_FIRST = 0
TO_DEVICE, TO_HOST, WITHIN = 1, 2, 3  # kinds of copies
THREAD_LEVEL = 0
DDR, HBM = 0, 1
SLICE = 0.5  # seconds of a wait, after which it is asked whether somebody has cancelled
GRACE = 1.0  # and that a device then has to end what it is doing


class Process:
    """The libraries of this process, initialised at the first use; there is one CANN in one."""

    def __init__(self) -> None:
        self.acl: Acl | None = None
        self.npus: dict[int, Npu] = {}
        self.here = threading.local()  # `npu`: whose context is current on this thread
        self.forked = False
        self._first = False  # nobody else had initialised it: so it is ours to end
        self._lock = threading.RLock()

    def start(self, toolkit: Toolkit) -> Acl:
        """The libraries, ready."""
        with self._lock:
            self.refuse_child()
            if self.acl is None:
                acl = Acl(toolkit)
                acl.load()
                what = "aclInit"
                code = acl.function(what)(None)
                if code not in (codes.SUCCESS, codes.REPEAT_INITIALIZE):
                    raise acl.error(what, code)
                self.acl, self._first = acl, code == codes.SUCCESS
                atexit.register(self.end)
            elif self.acl.toolkit != toolkit:
                msg = "this process uses another CANN already"
                used, other = self.acl.toolkit.root, toolkit.root
                raise DeviceError(msg, expected=used, got=other, do="start a new process")
            return self.acl

    def end(self) -> None:
        """Gives everything back; at the end of the process, too, however that comes."""
        with self._lock:
            if self.forked or self.acl is None:
                return
            for npu in list(self.npus.values()):
                npu.close()
            if self._first:
                self.acl.function("aclFinalize")()
            self.acl = None
            self.here = threading.local()
            atexit.unregister(self.end)

    def refuse_child(self) -> None:
        if self.forked:
            msg = "an NPU was in use before this process was forked: a child cannot use it"
            raise DeviceError(msg, do='start children afresh: multiprocessing\'s "spawn"')

    def child(self) -> None:
        """After a fork, in the child."""
        self.forked = self.acl is not None
        self._lock = threading.RLock()


PROCESS = Process()
os.register_at_fork(after_in_child=PROCESS.child)


class Npu:
    """One open NPU: its context and its stream."""

    def __init__(self, acl: Acl, index: int, *, timeout: float = 600.0) -> None:
        self.acl, self.index, self.timeout = acl, index, timeout
        self.busy = False  # something was launched since the last wait
        self.cancelled = False
        self.doubtful = ""  # why values that are not finite may lie in its caches
        self.on_close: list[Callable[[], None]] = []  # what gives memory back
        self.launched: list[Any] = []  # since the last wait
        # says more of the error of a wait, by its code and what was launched
        self.on_fault: Callable[[DeviceError, int, list[Any]], None] = lambda *_: None
        self.context = self.stream = 0
        self._puts: list[tuple[int, np.ndarray, object]] = []  # what goes to the device next
        self.sent: Mapping[int, np.ndarray] = {}  # what went there before all that was launched
        self._peers: dict[int, bool] = {}
        acl.call("aclrtSetDevice", index)
        PROCESS.here.npu = PROCESS.npus[index] = self
        try:
            self.context = acl.number("aclrtGetCurrentContext")
            self.stream = acl.number("aclrtCreateStream")
            self.soc = (acl.function("aclrtGetSocName")() or b"").decode()
            mode = acl.number("aclrtGetRunMode", kind=ctypes.c_int32)
            self.shared = mode == 0  # it has the host's memory, as on a board
        except BaseException:
            self.close()
            raise

    def use(self) -> Acl:
        """Makes this thread's calls go to this device."""
        if PROCESS.forked:
            PROCESS.refuse_child()
        if getattr(PROCESS.here, "npu", None) is not self:
            self.acl.call("aclrtSetCurrentContext", self.context)
            PROCESS.here.npu = self
        return self.acl

    def wait(self, what: str = "the NPU") -> None:
        """Until everything launched is done; raises what went wrong."""
        self.use()
        if not self.busy:
            return
        self.busy = False
        launched, self.launched = self.launched, []
        if code := self._synchronised(self.stream):
            self.doubtful = "a fault of the chip"
            if code == codes.SYNC_TIMEOUT and self.cancelled:
                self.leave_stream()
                self.acl.recent()
                msg = f"{what} did not end what was cancelled, and was left behind"
                raise CancelledError(msg)
            error = self._error(what, code)
            # it may still be at work, in memory that the next step writes
            if code == codes.SYNC_TIMEOUT or self._synchronised(self.stream):
                self.leave_stream()
            self.acl.recent()
            self.on_fault(error, code, launched)
            raise error
        if launched:
            self.sent = {}

    def settle(self, stream: int, what: str) -> None:
        """Waits for another stream; raises what went wrong in it."""
        self.use()
        if code := self._synchronised(stream):
            raise self._error(what, code)

    def _synchronised(self, stream: int) -> int:
        """Waits in slices, so that whoever cancels is heard though the device hangs."""
        limited = self.acl.find("aclrtSynchronizeStreamWithTimeout")
        if not limited:
            return int(self.acl.function("aclrtSynchronizeStream")(stream))
        end = time.monotonic() + self.timeout
        while True:
            left = end - time.monotonic()
            code = int(limited(stream, max(1, int(min(left, SLICE) * 1000))))
            if code != codes.SYNC_TIMEOUT or left <= SLICE:
                return code
            if self.cancelled:
                end = min(end, time.monotonic() + GRACE)
            self._clear()
            self.acl.recent()

    def _error(self, what: str, code: int) -> DeviceError:
        error = self.acl.error(f"waiting for {what}", code)
        self._clear()
        return error

    def _clear(self) -> None:
        """An error that is known is not the last one any more."""
        if clear := self.acl.find("aclrtGetLastError"):
            clear(THREAD_LEVEL)

    def leave_stream(self) -> None:
        """What hangs is left behind: a new stream can go on."""
        hanging, self.stream = self.stream, 0
        with contextlib.suppress(UmbelError):
            self.end_stream(hanging, by_force=True)
        self.stream = self.new_stream()

    def new_stream(self) -> int:
        return self.use().number("aclrtCreateStream")

    def end_stream(self, stream: int, *, by_force: bool = False) -> None:
        """Waits for it, or leaves behind what is in it."""
        self.use().call(f"aclrtDestroyStream{'Force' * by_force}", stream)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        acl = self.use()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        what = "aclrtGetMemInfo"
        ask = acl.function(what)
        for attribute in (HBM, DDR):
            code = ask(attribute, ctypes.byref(free), ctypes.byref(total))
            if not code and total.value:
                return free.value, total.value
        raise acl.error(what, code)

    def allocate(self, nbytes: int) -> int:
        acl = self.use()
        return acl.number("aclrtMalloc", nbytes, HUGE_FIRST)

    def free(self, address: int) -> None:
        """Whoever still uses it must have been waited for."""
        self.use().call("aclrtFree", address)

    def copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        """After everything that was launched before; done when it returns."""
        self.wait()
        self.flush()
        self._copy(to, source, nbytes, kind)

    def _copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self.acl.call("aclrtMemcpy", to, nbytes, source, nbytes, kind)

    def clear(self, address: int, nbytes: int) -> None:
        """Zeros; done when it returns."""
        self.wait()
        if nbytes:
            self.acl.call("aclrtMemset", address, nbytes, 0, nbytes)

    def put(self, to: int, data: np.ndarray, memory: object) -> None:
        """Whole tensors to the device, before what is done there next; few copies for many of
        them. `memory` is kept until then."""
        self._puts.append((to, data.copy(), memory))

    @property
    def pending(self) -> bool:
        """Whether there is something that was put, and did not go there yet."""
        return bool(self._puts)

    def flush(self) -> None:
        """Copies what was put, neighbours at once: there is nothing in what pads a tensor."""
        if not self._puts:
            return
        self.wait()
        puts, self._puts = self._puts, []
        self.sent = {to: data for to, data, _ in puts}
        while puts:
            begin, data, memory = puts.pop(0)
            parts, end, held = [data], begin + placed(data.nbytes), [memory]
            while puts and puts[0][0] == end:
                _, data, memory = puts.pop(0)
                parts += [np.zeros(end - begin - sum(p.nbytes for p in parts), np.uint8), data]
                end += placed(data.nbytes)
                held.append(memory)
            whole = np.concatenate([p.reshape(-1).view(np.uint8) for p in parts])
            self._copy(begin, whole.ctypes.data, whole.nbytes, TO_DEVICE)

    def pin(self, nbytes: int) -> int:
        """Memory of the host that the device reads and writes by itself."""
        return self.use().number("aclrtMallocHost", nbytes)

    def unpin(self, address: int) -> None:
        self.use().call("aclrtFreeHost", address)

    def send(self, to: int, pinned: int, nbytes: int, stream: int) -> None:
        """From such memory to the device's; it has arrived when the stream has settled."""
        if nbytes:
            copy = (to, nbytes, pinned, nbytes, TO_DEVICE, stream)
            self.use().call("aclrtMemcpyAsync", *copy)

    def reaches(self, other: Npu) -> bool:
        """Whether it copies from the other's memory without the host; asked once of each."""
        if other is not self and other.index not in self._peers:
            self._peers[other.index] = False
            with contextlib.suppress(UmbelError):
                acl, pair = self.use(), (self.index, other.index)
                can = acl.number("aclrtDeviceCanAccessPeer", *pair, kind=ctypes.c_int32)
                if can:
                    acl.call("aclrtDeviceEnablePeerAccess", other.index, 0)
                self._peers[other.index] = bool(can)
        return other is self or self._peers[other.index]

    def close(self) -> None:
        """Stream and device, whatever state they are in."""
        if PROCESS.npus.get(self.index) is not self or PROCESS.forked:
            return
        del PROCESS.npus[self.index]
        self._puts.clear()
        self.launched.clear()  # nobody asks any more what fails
        with contextlib.suppress(UmbelError):
            self.wait()
        steps: list[Callable[[], None]] = []
        if self.stream:
            steps.append(partial(self.acl.call, "aclrtDestroyStream", self.stream))
        reset: Callable[[], None] = partial(self.acl.call, "aclrtResetDevice", self.index)
        for step in (*steps, *self.on_close, reset):
            with contextlib.suppress(UmbelError):
                self.use()
                step()
        PROCESS.here.npu = None
