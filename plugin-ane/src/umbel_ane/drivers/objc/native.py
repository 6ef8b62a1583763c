"""The two ways out of Python: C functions by their name, and messages to Objective-C objects.

Everything above asks for these two alone, so that it can be tested where no Mac is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from umbel.errors import DeviceError

FRAMEWORK = "/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/AppleNeuralEngine"
PUBLIC = "/System/Library/Frameworks/{0}.framework/{0}"
LIBRARIES = {
    "objc": "/usr/lib/libobjc.A.dylib",
    "AppleNeuralEngine": FRAMEWORK,
    **{n: PUBLIC.format(n) for n in ("CoreFoundation", "Foundation", "IOSurface")},
}


class Native(Protocol):
    """Objects and pointers are integers."""

    def load(self, library: str) -> None:
        """One of LIBRARIES; OSError where it cannot be loaded."""

    def function(
        self, library: str, name: str, result: Any, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        """A C function with that signature."""

    def send(
        self, receiver: int, selector: str, result: Any, arguments: Sequence[Any], *values: Any
    ) -> Any:
        """The answer to a message."""


class Rubicon:
    """With rubicon-objc, whose `send_message` finds the right `objc_msgSend` and guards what
    is passed."""

    def __init__(self) -> None:
        try:
            from rubicon.objc import runtime
        except ImportError as error:
            msg = "rubicon-objc is not installed, without which no private API can be called"
            raise DeviceError(msg, got=str(error), do="pip install rubicon-objc") from error
        self._runtime = runtime
        self._loaded: dict[str, ctypes.CDLL] = {}

    def load(self, library: str) -> None:
        if library not in self._loaded:
            self._loaded[library] = ctypes.CDLL(LIBRARIES[library])

    def function(
        self, library: str, name: str, result: Any, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        self.load(library)
        found = self._loaded[library][name]  # by index: a new object, whose types are our own
        found.restype, found.argtypes = result, list(arguments)
        return found

    def send(
        self, receiver: int, selector: str, result: Any, arguments: Sequence[Any], *values: Any
    ) -> Any:
        answer = self._runtime.send_message(
            self._runtime.objc_id(receiver),
            selector,
            *values,
            restype=result,
            argtypes=list(arguments),
        )
        return answer.value if isinstance(answer, ctypes.c_void_p) else answer
