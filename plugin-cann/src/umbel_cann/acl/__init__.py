"""The vendor's C libraries through ctypes: found late, each function by itself.

Which functions there are differs between versions, and from 8.5 on operators are spread over
several libraries. So a function is looked up at its first use, in all of them; one that is
missing is a reason, never a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from umbel.errors import DeviceError, OutOfMemoryError, PluginError

from umbel_cann.acl import codes
from umbel_cann.acl.prototypes import OPERATORS, names, operator_of, prototype
from umbel_cann.acl.toolkit import Toolkit

LIBRARIES = (
    "libascendcl.so",
    "libnnopbase.so",
    "libopapi.so",
    "libopapi_math.so",
    "libopapi_nn.so",
    "libopapi_transformer.so",
)
_FIRST = ("libascend_protobuf.so", "libplatform.so")  # what others need, but do not name
_NEEDED = LIBRARIES[:2]


class Acl:
    """The libraries of one toolkit."""

    def __init__(self, toolkit: Toolkit) -> None:
        self.toolkit = toolkit
        self.lacking: dict[str, str] = {}  # libraries that cannot be had, and why
        self.operators = dict(OPERATORS)  # and their arguments
        self._homes: dict[str, str | None] = {}  # libraries of operators that others know
        self._functions: dict[str, Any] = {}
        self._libraries: list[Any] | None = None

    def load(self) -> None:
        """Loads what there is; a `DeviceError` where the runtime is not to be had."""
        self._load()
        missing = [name for name in _NEEDED if name in self.lacking]
        if missing:
            msg = f"CANN cannot be used: {missing[0]}: {self.lacking[missing[0]]}"
            do = "source the toolkit's set_env.sh; `umbel doctor` tells what is missing"
            raise DeviceError(msg, where=self.toolkit.root, do=do)

    def _load(self) -> list[Any]:
        if self._libraries is None:
            self._libraries = []
            for name in (*_FIRST, *LIBRARIES):
                path = self.toolkit.library(name)
                if path is None:  # asked by its name alone, the system might find a stub
                    self.lacking[name] = "it is neither there nor in LD_LIBRARY_PATH"
                    continue
                try:
                    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                except OSError as error:
                    self.lacking[name] = " ".join(str(error).split())
                    continue
                if name not in _FIRST:
                    self._libraries.append(loaded)
        return self._libraries

    def bring(self, operators: Mapping[str, str], library: str | None) -> None:
        """Operators that others know, and where they are looked for first; those that the
        plugin knows are CANN's. `PluginError` where somebody says otherwise."""
        for name, letters in operators.items():
            if (known := self.operators.setdefault(name, letters)) != letters:
                msg = f"aclnn{name} is known with other arguments"
                raise PluginError(msg, expected=known, got=letters)
            if name not in OPERATORS and self._homes.setdefault(name, library) != library:
                msg = f"aclnn{name} is known from another library"
                raise PluginError(msg, expected=self._homes[name], got=library)

    def _home(self, name: str) -> list[Any]:
        """The library that was brought with a function."""
        home = self._homes.get(operator_of(name))
        if home is None or home in self.lacking:
            return []
        path = home if "/" in home else self.toolkit.library(home)
        try:
            if path is not None:
                return [ctypes.CDLL(str(path))]
            self.lacking[home] = "it is neither there nor in LD_LIBRARY_PATH"
        except OSError as error:
            self.lacking[home] = " ".join(str(error).split())
        return []

    def find(self, name: str) -> Any:
        """The function of that name with its prototype, or None."""
        if name not in self._functions:
            self._functions[name] = None
            for library in (*self._home(name), *self._load()):
                if (function := getattr(library, name, None)) is not None:
                    function.restype, function.argtypes = prototype(name, self.operators)
                    self._functions[name] = function
                    break
        return self._functions[name]

    def missing(self, operator: str) -> str | None:
        """Why an operator cannot be called, if it cannot."""
        if operator not in self.operators:
            return f"the plugin does not know aclnn{operator}"
        if any(self.find(name) is None for name in names(operator)):
            if (home := self._homes.get(operator)) is not None:
                why = self.lacking.get(home, "it is not in there")
                return f"aclnn{operator} of {home}: {why}"
            return f"aclnn{operator} is not in this version of CANN"
        return None

    def function(self, name: str) -> Any:
        """The function of that name; a `DeviceError` where it is missing."""
        function = self.find(name)
        if function is None:
            msg = f"{name} is not in this version of CANN"
            do = "install a newer toolkit; `umbel doctor` tells which is used"
            raise DeviceError(msg, where=self.toolkit.root, do=do)
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Calls; what is not success is an error."""
        code = self.function(name)(*arguments)
        if code:
            raise self.error(name, code)

    def made(self, name: str, *arguments: Any) -> int:
        """What a function that creates something gives."""
        handle = self.function(name)(*arguments)
        if not handle:
            msg = f"{name} gave nothing"
            raise DeviceError(msg, got=self.recent())
        return int(handle)

    def number(self, name: str, *before: Any, kind: Callable[[], Any] = ctypes.c_void_p) -> int:
        """What a function writes through its last or only pointer to a number or handle."""
        value = kind()
        self.call(name, ctypes.byref(value), *before)
        return int(value.value or 0)

    def recent(self) -> str | None:
        """What the libraries say of the last error on this thread, once; one line."""
        function = self.find("aclGetRecentErrMsg")
        text = function() if function else None
        return " ".join(text.decode(errors="replace").split())[:600] if text else None

    def error(self, what: str, code: int) -> DeviceError:
        """The typed error of a code."""
        kind = OutOfMemoryError if code in (codes.NO_MEMORY, 207018) else DeviceError
        msg = f"{what} failed: {codes.name(code)}"
        return kind(msg, got=self.recent(), do=codes.ADVICE.get(code))
