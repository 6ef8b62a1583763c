"""What the driver calls, in terms of values: objects made and read, errors turned into ours.

An object that a call gives belongs to the innermost pool and goes with it; what is to stay is
kept by `hold`, and let go by its `release`. Objects are integers, 0 is nil.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from umbel_ane.drivers import AneError
from umbel_ane.drivers.objc import encodings as m
from umbel_ane.drivers.objc.encodings import Method, signature
from umbel_ane.drivers.objc.native import Native

_P = ctypes.c_void_p
Put = ctypes.POINTER(_P)  # where a call puts an object


@attrs.define(eq=False)
class Held:
    """An object of ours, until it is released; it goes with its last user at the latest."""

    calls: Calls
    address: int

    def release(self) -> None:
        address, self.address = self.address, 0
        if address:
            self.calls.send(address, m.release)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the system takes all
            self.release()


class Calls:
    def __init__(self, native: Native) -> None:
        self.native = native
        self._classes: dict[str, int] = {}
        self._options: Held | None = None

    def send(self, receiver: int, method: Method, *values: Any) -> Any:
        """An object or a pointer comes as an integer, a scalar as what it is."""
        if not receiver:
            msg = f"{method} was sent to nil"
            raise AneError(msg, domain="")
        result, arguments = signature(method.encoding)
        answer = self.native.send(receiver, method.selector, result, arguments, *values)
        return (answer or 0) if result is _P else answer

    def ask(self, method: Method, *values: Any) -> Any:
        """The answer of a class."""
        return self.send(self._class(method.owner), method, *values)

    def attempt(self, what: str, receiver: int, method: Method, *values: Any) -> None:
        """A method that gives success, and puts an error where its last argument says."""
        put = _P()
        if self.send(receiver, method, *values, ctypes.byref(put)):
            return
        raise self._failed(what, put.value or 0)

    def _failed(self, what: str, error: int) -> AneError:
        if not error:
            do = "a process may compile some 119 programs; start again if it has"
            return AneError(f"{what}: the system gave no reason", domain="", do=do)
        domain = self.text(self.send(error, m.error_domain))
        text = self.text(self.send(error, m.error_text))
        return AneError(what, domain=domain, code=self.send(error, m.error_code), text=text)

    def _class(self, name: str) -> int:
        if name not in self._classes:
            found = self._get_class(name.encode())
            if not found:
                msg = f"there is no class {name}"
                do = "AppleNeuralEngine.framework is not loaded, or it is of another macOS"
                raise AneError(msg, domain="", do=do)
            self._classes[name] = found
        return self._classes[name]

    @property
    def options(self) -> int:
        """A dictionary of no options: `{}`, never nil."""
        if self._options is None:
            self._options = self.hold(self.dictionary({}), "a dictionary")
        return self._options.address

    def close(self) -> None:
        options, self._options = self._options, None
        if options is not None:
            options.release()

    # -- how long objects live

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Objects that were given within go at its end."""
        pool = self._push()
        try:
            yield
        finally:
            self._pop(pool)

    def hold(self, address: int, what: str) -> Held:
        if not address:
            msg = f"{what} cannot be made: the system gave nil"
            raise AneError(msg, domain="")
        return Held(self, self.send(address, m.retain))

    # -- values to objects

    def string(self, text: str) -> int:
        return int(self.ask(m.string, text.encode()))

    def data(self, data: bytes) -> int:
        """Of a copy."""
        return int(self.ask(m.data_copied, data, len(data)))

    def shared_data(self, data: bytes | memoryview) -> int:
        """Of the bytes where they lie: they have to stay as long as the object."""
        if not len(data):
            return self.data(b"")
        values = np.frombuffer(data, np.uint8)
        return int(self.ask(m.data_shared, values.ctypes.data, values.nbytes, False))

    def number(self, value: int) -> int:
        return int(self.ask(m.number, value))

    def array(self, items: Sequence[int]) -> int:
        return int(self.ask(m.array, (_P * len(items))(*items), len(items)))

    def dictionary(self, items: Mapping[str, int]) -> int:
        """Never nil, also where there are no items."""
        keys = (_P * len(items))(*map(self.string, items))
        values = (_P * len(items))(*items.values())
        return int(self.ask(m.dictionary, values, keys, len(items)))

    # -- objects to values

    def text(self, string: int) -> str:
        told = self.send(string, m.text_of) if string else None
        return told.decode("utf-8", "replace") if told else ""

    def items(self, array: int) -> list[int]:
        count = self.send(array, m.array_count) if array else 0
        return [self.send(array, m.array_item, i) for i in range(count)]

    def item(self, dictionary: int, key: str) -> int:
        return int(self.send(dictionary, m.dictionary_item, self.string(key)))

    # -- C functions

    @cached_property
    def _get_class(self) -> Any:
        return self.native.function("objc", "objc_getClass", _P, [ctypes.c_char_p])

    @cached_property
    def _push(self) -> Any:
        return self.native.function("objc", "objc_autoreleasePoolPush", _P, [])

    @cached_property
    def _pop(self) -> Any:
        return self.native.function("objc", "objc_autoreleasePoolPop", None, [_P])

    def temporary(self) -> str:
        """The folder in which the system looks for programs."""
        with self.pool():
            return self.text(
                self.native.function("Foundation", "NSTemporaryDirectory", _P, [])()
            )
