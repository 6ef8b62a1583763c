"""Run as a program, with a simulated chip: every call of a step fails once.

    python faulty.py MODEL first|second|replay STRIDE

A step is made at the first run, recorded at the second where the chip can, and replayed then.

Each fault ends in one typed error or changes nothing; then the same text comes again. It prints
how many calls there were, how many of them were made to fail, and how many errors that gave.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import umbel
from umbel.errors import DeviceError
from umbel_cann import acl

BROKEN = 507899  # the driver's internal error
NO_FAULT = ("Destroy", "Free", "GetRecentErrMsg", "GetLastError")  # what gives back, what tells


class Faulty:
    """Counts calls; the `fail`-th one fails in the place of the vendor's function."""

    def __init__(self) -> None:
        self.count, self.fail = 0, 0
        self.failed = ""
        self._known: dict[str, Any] = {}

    def of(self, name: str, function: Any) -> Any:
        if function is None or any(part in name for part in NO_FAULT):
            return function
        if name not in self._known:
            self._known[name] = self._faulty(name, function)
        return self._known[name]

    def _faulty(self, name: str, function: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.count += 1
            if self.count != self.fail:
                return function(*arguments)
            self.failed = name
            if name.startswith("aclnn") and not name.endswith("WorkspaceSize"):
                function(*arguments)  # whatever it gives, the executor is spent
            return None if function.restype is ctypes.c_void_p else BROKEN

        return call


def main(path: str, when: str, stride: int) -> None:
    faults, find = Faulty(), acl.Acl.find
    acl.Acl.find = lambda self, name: faults.of(name, find(self, name))  # type: ignore[method-assign]
    model = umbel.load(path, device="cann:0", ctx=128)

    def write() -> str:
        return model.generate("Once upon a time", max_tokens=3, temperature=0).read()

    def fresh() -> None:
        if when != "replay":  # everything is made again
            model.engine.call(model.runner._forget_plans)
        if when == "second":
            write()

    expected = write()
    write()
    fresh()
    faults.count = 0
    assert write() == expected
    calls, tried, errors = faults.count, 0, 0
    for n in range(1, calls + 1, stride):
        fresh()
        faults.count, faults.fail, faults.failed = 0, n, ""
        told = ""
        try:
            text = write()
        except DeviceError as error:
            text, told = expected, error.what
        errors += bool(told)
        assert not told or "DRV_INTERNAL_ERROR" in told or "gave nothing" in told, told
        assert text == expected, faults.failed
        tried += bool(faults.failed)
        faults.fail = 0
        again = write()
        assert again == expected, (n, faults.failed)
    model.close()
    print(calls, tried, errors)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
