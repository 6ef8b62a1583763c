"""The native library: its prototypes, the layout of what it is given, and which kernels to use.

`UMBEL_NUMA_KERNELS` forces a set of kernels by name; one that the processor cannot run is
refused.
"""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
from umbel.errors import DeviceError, OptionError

FORCED = "UMBEL_NUMA_KERNELS"
NODES, INPUTS, LANES = 16, 11, 16

TENSOR = np.dtype(
    [
        ("data", "<u8"),
        ("n", "<i8", 4),
        ("s", "<i8", 4),
        ("type", "<i4"),
        ("axes", "<i4"),
        ("weight", "<u8"),
    ]
)
STEP = np.dtype(
    [
        ("op", "<i4"),
        ("barrier", "<i4"),
        ("inputs", "<i4"),
        ("out", "<i4"),
        ("in", "<i4", INPUTS),
        ("spare", "<i4"),
        ("i", "<i8", 8),
        ("f", "<f4", 8),
    ]
)
WEIGHT = np.dtype(
    [
        ("format", "<u8"),
        ("rows", "<i8"),
        ("cols", "<i8"),
        ("count", "<i8"),
        ("groups", "<i8"),
        ("group_bytes", "<i8"),
        ("nodes", "<i8"),
        ("split", "<i8"),
        ("chosen", "<u8"),
        ("first", "<i8", NODES + 1),
        ("data", "<u8", NODES),
    ]
)


class Format(ctypes.Structure):
    """What Python reads of a `un_format`."""

    _fields_ = (("type", c_int32), ("act", c_int32), ("block", c_int32), ("bytes", c_int32))


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "un_op_names": (c_char_p,),
    "un_sizes": (None, POINTER(c_int32)),
    "un_variant": (c_void_p, c_char_p),
    "un_variant_name": (c_char_p, c_int),
    "un_variant_runs": (c_int, c_int),
    "un_format_of": (POINTER(Format), c_void_p, c_int),
    "un_engine_new": (c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p),
    "un_engine_free": (None, c_void_p),
    "un_engine_pinned": (c_int, c_void_p),
    "un_engine_shares": (None, c_void_p, c_int, c_void_p),
    "un_program_new": (c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_int64),
    "un_program_free": (None, c_void_p),
    "un_program_times": (c_void_p, c_void_p),
    "un_run": (c_int, c_void_p, c_void_p, c_int),
    "un_cancel": (None, c_void_p, c_int),
    "un_pack": (c_int, c_void_p, c_void_p, c_void_p, c_int64),
    "un_pages_drop": (c_int, c_void_p, c_int64),
    "un_set_table": (None, c_int, c_void_p),
    "un_unpack_row": (None, c_void_p, c_int64, c_void_p),
    "un_pages_size": (c_int64,),
    "un_pages_bind": (c_int, c_void_p, c_int64, c_int),
    "un_pages_move": (c_int, c_void_p, c_int64, c_int),
    "un_pages_where": (c_int, c_void_p, c_int64, c_void_p, c_int),
    "un_pages_absent": (c_int64, c_void_p, c_int64),
    "un_barrier_time": (c_double, c_int, c_void_p, c_void_p, c_int, c_int),
}


@cache
def library() -> Any:
    """The library, opened once; a `DeviceError` where it is missing or of another build."""
    path = Path(__file__).with_name("libumbel_numa.so")
    try:
        _check_whole(path)
        lib = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _PROTOTYPES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        msg, do = "the native library cannot be loaded", "install umbel-plugin-numa again"
        raise DeviceError(msg, where=path, got=error, do=do) from error
    sizes = (c_int32 * 3)()
    expected = [TENSOR.itemsize, STEP.itemsize, WEIGHT.itemsize]
    lib.un_sizes(sizes)
    got = list(sizes)
    if got != expected:
        msg, do = "the native library is of another build", "install umbel-plugin-numa again"
        raise DeviceError(msg, where=path, expected=expected, got=got, do=do)
    return lib


def no_threads(count: int, code: int) -> DeviceError:
    """Of a run that could not begin; `code` is -errno."""
    msg, why = f"the engine cannot start {count} threads", os.strerror(-code)
    return DeviceError(msg, got=why, do="take fewer: --threads")


def _check_whole(path: Path) -> None:
    """The system's loader would die of an ELF file that is cut off: at the end is the table of
    its sections."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"\x7fELF") and len(head) == 64:
        (start,), (size, count) = unpack_from("<Q", head, 40), unpack_from("<HH", head, 58)
        if path.stat().st_size < start + size * count:
            msg = "the file is cut off"
            raise OSError(msg)


@cache
def operations() -> dict[str, int]:
    """The operations of the library and their numbers."""
    return {name: i for i, name in enumerate(library().un_op_names().decode().split())}


def variants() -> dict[str, bool]:
    """The sets of kernels in the library, best first, and whether this processor runs them."""
    lib, found = library(), dict[str, bool]()
    while name := lib.un_variant_name(len(found)):
        found[name.decode()] = bool(lib.un_variant_runs(len(found)))
    return found


def variant() -> str:
    """The set in use: the best that runs, or the one that is forced."""
    known = variants()
    forced = os.environ.get(FORCED)
    if not forced:
        return next(name for name, runs in known.items() if runs)
    if not known.get(forced):
        usable = ", ".join(name for name, runs in known.items() if runs)
        what = "this processor cannot run" if forced in known else "there are no"
        msg = f"{what} kernels called {forced!r}"
        raise OptionError(msg, where=FORCED, expected=usable, got=forced)
    return forced
