"""IOSurfaces: memory that host and engine share. NumPy sees it where it lies."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from umbel_ane.drivers import AneError
from umbel_ane.drivers.objc import encodings as m
from umbel_ane.drivers.objc.calls import Calls, Held

READ_ONLY = 1  # kIOSurfaceLockReadOnly
_P, _N = ctypes.c_void_p, ctypes.c_size_t


class Functions:
    """Those of IOSurface.framework."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def _of(self, name: str, result: Any, *arguments: Any, of: str = "IOSurface") -> Any:
        return self.calls.native.function(of, name, result, arguments)

    @cached_property
    def create(self) -> Any:
        return self._of("IOSurfaceCreate", _P, _P)

    @cached_property
    def size(self) -> Any:
        return self._of("IOSurfaceGetAllocSize", _N, _P)

    @cached_property
    def base(self) -> Any:
        return self._of("IOSurfaceGetBaseAddress", _P, _P)

    @cached_property
    def lock(self) -> Any:
        return self._of("IOSurfaceLock", ctypes.c_int32, _P, ctypes.c_uint32, _P)

    @cached_property
    def unlock(self) -> Any:
        return self._of("IOSurfaceUnlock", ctypes.c_int32, _P, ctypes.c_uint32, _P)

    @cached_property
    def release(self) -> Any:
        return self._of("CFRelease", None, _P, of="CoreFoundation")


@attrs.define(eq=False)
class Surface:
    """One row of bytes."""

    nbytes: int
    _functions: Functions
    _reference: int  # an IOSurfaceRef
    _object: Held  # the _ANEIOSurfaceObject of it

    @classmethod
    def make(cls, functions: Functions, nbytes: int) -> Surface:
        calls = functions.calls
        layout = {
            "IOSurfaceWidth": nbytes,
            "IOSurfaceHeight": 1,
            "IOSurfaceBytesPerElement": 1,
            "IOSurfaceBytesPerRow": nbytes,
            "IOSurfaceAllocSize": nbytes,
            "IOSurfacePixelFormat": 0,
        }
        with calls.pool():
            # an NSDictionary of NSNumbers is a CFDictionary of CFNumbers ("toll-free bridged")
            given = calls.dictionary({key: calls.number(n) for key, n in layout.items()})
            reference = functions.create(given) if nbytes > 0 else None
            if not reference:
                msg = f"a surface of {nbytes} bytes cannot be made"
                do = "is there so much memory? Close other programs, or take a smaller model"
                raise AneError(msg, domain="IOSurface", text="IOSurfaceCreate gave NULL", do=do)
            try:
                size = functions.size(reference)
                if size < nbytes:
                    msg = f"a surface has {size} bytes, fewer than the {nbytes} asked for"
                    raise AneError(msg, domain="IOSurface")
                made = calls.hold(calls.ask(m.surface_object, reference), "a surface's object")
            except BaseException:
                functions.release(reference)
                raise
        return cls(nbytes, functions, reference, made)

    @property
    def object(self) -> int:
        """What a request takes."""
        self._living()
        return self._object.address

    def _living(self) -> int:
        if not self._reference:
            msg = "a surface is used after it was released"
            raise AneError(msg, domain="IOSurface", do="this is a bug of Umbel: report it")
        return self._reference

    @contextmanager
    def lock(self, *, read_only: bool = False) -> Iterator[np.ndarray]:
        reference, flags = self._living(), READ_ONLY if read_only else 0
        self._check(self._functions.lock(reference, flags, None), "locked")
        try:
            base = self._functions.base(reference)
            if not base:
                msg = "a surface has no memory that can be seen"
                raise AneError(msg)
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(base))
            memory.flags.writeable = not read_only
            yield memory
        finally:
            self._check(self._functions.unlock(reference, flags, None), "unlocked")

    def _check(self, status: int, what: str) -> None:
        if status:
            msg = f"a surface of {self.nbytes} bytes cannot be {what}"
            raise AneError(msg, domain="IOSurface", code=status & 0xFFFFFFFF, text="IOReturn")

    def release(self) -> None:
        reference, self._reference = self._reference, 0
        if reference:
            self._object.release()
            self._functions.release(reference)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the system takes all
            self.release()
