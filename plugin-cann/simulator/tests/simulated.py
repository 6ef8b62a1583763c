"""Tests of the simulator: each runs in a process of its own, whose environment says what is
simulated, and is given the library.

    @simulated(chip="310B", UMBEL_CANN_FAULT="task=2")
    def test_something(acl): ...
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

import umbel_cann_simulator

HEADER = Path(__file__).parents[1] / "src/umbel_cann_simulator/native/acl.h"
HANDLES = ("aclrtStream", "aclrtEvent", "aclrtContext", "aclrtDrvMemHandle", "aclmdlRI")
NUMBERS = {
    "void": None,
    "aclrtCallback": c_void_p,
    "float": c_float,
    "aclFloat16": ctypes.c_uint16,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    **dict.fromkeys(HANDLES, c_void_p),
}
Run = ctypes.CFUNCTYPE(None, c_void_p)
H2H, H2D, D2H, D2D = range(4)


def simulated(chip: str = "910B", dies: int = 0, **env: str) -> Callable[[Any], Any]:
    """The test runs on this chip; `dies`: of that signal."""

    def wrap(inside: Callable[[Acl], None]) -> Callable[[], None]:
        def test() -> None:
            where = {**os.environ, "UMBEL_CANN_SIMULATOR": chip, **env}
            command = [sys.executable, __file__, inside.__code__.co_filename, inside.__name__]
            done = subprocess.run(command, env=where, capture_output=True, text=True)
            assert done.returncode == -dies, done.stderr + done.stdout

        test.__name__, test.__doc__ = inside.__name__, inside.__doc__
        test.inside = inside  # type: ignore[attr-defined]
        return test

    return wrap


class Task(Structure):
    """`sim_task` of sim.h."""

    _fields_ = (
        ("name", c_char_p),
        ("run", Run),
        ("drop", Run),
        ("arg", c_void_p),
        ("flops", c_double),
        ("bytes", c_double),
    )


def prototypes() -> Iterator[tuple[str, Any, list[Any]]]:
    """The functions of the header with their types."""
    text = re.sub(r"\s+", " ", HEADER.read_text())
    for result, name, arguments in re.findall(r"ACL_API ([^;()]*?)(\w+)\(([^()]*)\);", text):
        types = [] if arguments == "void" else [argument(a) for a in arguments.split(",")]
        yield name, c_char_p if "char" in result else argument(result + "x"), types


def argument(text: str) -> Any:
    if "*" in text:
        return c_void_p
    return NUMBERS.get(text.split()[0].removesuffix("x"), c_int)


class Acl:
    """The library. `ok(name, ...)` calls what has to go well."""

    def __init__(self) -> None:
        path = umbel_cann_simulator.toolkit() / "lib64/libascendcl.so"
        self.library = ctypes.CDLL(str(path))
        for name, result, arguments in prototypes():
            if hasattr(self.library, name):
                function = getattr(self.library, name)
                function.restype, function.argtypes = result, arguments
        self.library.sim_submit.argtypes = c_void_p, POINTER(Task)
        self.library.sim_at.restype = c_void_p
        self.library.sim_at.argtypes = c_void_p, ctypes.c_size_t
        self.kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def ok(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}: {self.message()}"

    def message(self) -> str:
        text: bytes | None = self.library.aclGetRecentErrMsg()
        return (text or b"").decode()

    def start(self) -> Acl:
        self.ok("aclInit", None)
        self.ok("aclrtSetDevice", 0)
        return self

    def made(self, name: str, *arguments: Any) -> int:
        """What a function gives through its first argument."""
        place = c_void_p()
        self.ok(name, byref(place), *arguments)
        return place.value or 0

    def malloc(self, size: int) -> int:
        return self.made("aclrtMalloc", size, 0)

    def stream(self) -> int:
        return self.made("aclrtCreateStream")

    def upload(self, at: int, data: bytes) -> None:
        self.ok("aclrtMemcpy", at, len(data), data, len(data), H2D)

    def read(self, at: int, size: int) -> bytes:
        place = ctypes.create_string_buffer(size)
        self.ok("aclrtMemcpy", place, size, at, size, D2H)
        return place.raw

    def submit(
        self,
        stream: int | None,
        run: Callable[[], object],
        drop: Callable[[], object] = bool,
        flops: float = 0,
        moved: float = 0,
    ) -> int:
        """A task whose work is a Python function."""
        task = Task(b"test", Run(lambda _: run() and None), Run(lambda _: drop() and None))
        task.flops, task.bytes = flops, moved
        self.kept.append(task)
        code: int = self.library.sim_submit(stream, byref(task))
        return code

    @contextmanager
    def blocked(self, stream: int | None) -> Iterator[None]:
        """While this lasts, the stream is at a task."""
        begun, end = threading.Event(), threading.Event()

        def run() -> None:
            begun.set()
            end.wait()

        assert self.submit(stream, run) == 0
        begun.wait()
        yield
        end.set()

    def report(self) -> Any:
        """Counters and clock."""
        text = ctypes.create_string_buffer(1 << 16)
        self.library.umbel_simulator_counters(text, ctypes.c_size_t(len(text)))
        return json.loads(text.value)

    def counted(self, name: str) -> int:
        value: int = self.report()["counters"].get(name, 0)
        return value


def in_thread(work: Callable[[], Any]) -> Any:
    """What the function gives when a new thread calls it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    runpy.run_path(sys.argv[1])[sys.argv[2]].inside(Acl())
