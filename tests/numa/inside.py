"""What the tests ask of the kernel that they run on."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import struct
from collections.abc import Callable, Collection, Iterator
from ctypes import POINTER, c_char, c_double, c_int, c_int64, c_void_p
from typing import Any, TypeVar

T = TypeVar("T")
WORK = ctypes.CFUNCTYPE(None, c_void_p, c_int)
MBIND, MOVE_PAGES = (237,), (279,)  # x86-64
NUMA_CALLS = (*MBIND, 238, 239, 256, *MOVE_PAGES)
SCHED_SETAFFINITY = (203,)
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "un_pages_size": (c_int64,),
    "un_pages_alloc": (c_void_p, c_int64, c_int),
    "un_pages_free": (c_int, c_void_p, c_int64),
    "un_pages_bind": (c_int, c_void_p, c_int64, c_int),
    "un_pages_move": (c_int, c_void_p, c_int64, c_int),
    "un_pages_where": (c_int, c_void_p, c_int64, POINTER(c_int64), c_int),
    "un_pool_new": (c_void_p, c_int, POINTER(c_int), POINTER(c_int)),
    "un_pool_free": (None, c_void_p),
    "un_pool_run": (c_int, c_void_p, c_int, WORK, c_void_p),
    "un_pool_node": (c_int, c_void_p, c_int),
    "un_pool_pinned": (c_int, c_void_p),
    "un_barrier_time": (c_double, c_int, POINTER(c_int), POINTER(c_int), c_int, c_int),
}
_COUNTING: dict[str, tuple[Any, ...]] = {
    "count_crossings": (c_int64, c_void_p, c_int, POINTER(c_int64)),
    "where_node_meets": (c_void_p, c_void_p, c_int),
}


def library(path: str, *, counting: bool = False) -> Any:
    """The runtime's functions; `counting`: of the build that counts."""
    lib = ctypes.CDLL(path, use_errno=True)
    for name, (result, *arguments) in (_PROTOTYPES | (_COUNTING if counting else {})).items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def here() -> tuple[int, int]:
    """The CPU and the node that this thread runs on."""
    cpu, node = ctypes.c_uint(), ctypes.c_uint()
    assert ctypes.CDLL(None).getcpu(ctypes.byref(cpu), ctypes.byref(node)) == 0
    return cpu.value, node.value


@contextlib.contextmanager
def running_on(cpus: Collection[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns in a process that then ends, and its cgroup and filters with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: object = work()
        except BaseException as error:
            answer = AssertionError(f"in the child: {error!r}")
        with open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told: T = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(told, AssertionError):
        raise told
    return told


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def refuse(calls: Collection[int]) -> None:
    """Makes these system calls fail with EPERM for this process, as Docker's filter does."""
    code = struct.pack("HBBI", _LOAD, 0, 0, 0)
    for left, call in zip(range(len(calls), 0, -1), calls, strict=True):
        code += struct.pack("HBBI", _IF_EQUAL, left, 0, call)
    code += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    code += struct.pack("HBBI", _RETURN, 0, 0, _REFUSE | errno.EPERM)
    program = _Program(len(code) // 8, code)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0


class Memory:
    """Pages of the engine's own; `nodes`: how many the machine has."""

    def __init__(self, native: Any, nbytes: int, nodes: int) -> None:
        self.native, self.nbytes, self.nodes = native, nbytes, nodes
        self.page = native.un_pages_size()
        self.address = native.un_pages_alloc(nbytes, 1)
        assert self.address

    def fill(self, value: int = 1) -> None:
        ctypes.memset(self.address, value, self.nbytes)

    def holds(self, value: int = 1) -> bool:
        return ctypes.string_at(self.address, self.nbytes) == bytes([value]) * self.nbytes

    def where(self) -> dict[int, int]:
        return where(self.native, self.address, self.nbytes, self.nodes)

    def bind(self, node: int) -> int:
        return int(self.native.un_pages_bind(self.address, self.nbytes, node))

    def move(self, node: int, start: int = 0, nbytes: int | None = None) -> int:
        size = self.nbytes if nbytes is None else nbytes
        return int(self.native.un_pages_move(self.address + start, size, node))

    def free(self) -> None:
        assert self.native.un_pages_free(self.address, self.nbytes) == 0


def where(native: Any, address: int, nbytes: int, nodes: int) -> dict[int, int]:
    """How many pages lie on each node, -1 being nowhere."""
    counts = (c_int64 * (nodes + 1))()
    assert native.un_pages_where(address, nbytes, counts, nodes) == 0
    return {n if n < nodes else -1: count for n, count in enumerate(counts) if count}


def address_of(buffer: Any) -> int:
    return ctypes.addressof(c_char.from_buffer(buffer))
