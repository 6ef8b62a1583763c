"""The built-in backend `host`: NumPy on any machine. It runs every operation by its reference.

Quantised weights stay mapped. Those that matrix products read are dequantised once to float32
while the memory budget lasts, the others in pieces at each use; `-O host.dequantise=` and `-O
host.memory=` choose.
"""

import ctypes
import itertools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import UMBEL_API as UMBEL_API
from umbel.hookspecs import Device, DeviceInfo, Kernel, Option, SplitGraph, hookimpl
from umbel.host.kernels import Arrays, Step, compile_node
from umbel.host.memory import HostBufferType

log = logging.getLogger("umbel")

DEVICE = Device("host:0", "NumPy on the CPU", priority=0, reads_host=True)
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = (_GROUP / "memory.max", _GROUP / "memory/memory.limit_in_bytes")  # of a container
# OpenBLAS as the NumPy wheels carry it (prefixed, 64-bit integers), and as distributions do
_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@attrs.define(eq=False)
class _Host:
    """What is known while the device is open."""

    buffer_type: HostBufferType
    programs: dict[int, list[Step]] = attrs.field(factory=dict)
    cancelled: bool = False


_open: dict[str, _Host] = {}


def _whole(text: str) -> int:
    """A whole number that is not negative, or a size such as 800M or 2G."""
    found = re.fullmatch(r"([0-9]+)([KMG]?)", text.upper())
    if found is None:
        msg = "a whole number that is not negative is wanted"
        raise ValueError(msg)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


@hookimpl
def devices() -> Sequence[Device]:
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    once = "once: keep float32 copies of the weights; blocks: never; auto: as memory allows"
    most = "bytes that those copies may take (auto: half of what is free)"
    return [
        Option("dequantise", once, "auto", choices=("auto", "once", "blocks")),
        Option("memory", most, None, _whole),
        Option("threads", "threads of the BLAS library; 0: as many as it likes", None, _whole),
    ]


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    total, free = memory()
    mode, limit = options.get("dequantise", "auto"), options.get("memory")
    if mode == "blocks" or limit is None:
        limit = {"once": 1 << 62, "blocks": 0}.get(mode, free // 2)
    threads = set_threads(options.get("threads") or 0)
    _open[device.name] = _Host(HostBufferType(limit, threads))
    details = {"numpy": np.__version__, "threads": threads}
    return DeviceInfo(memory_total=total, memory_free=free, details=details)


@hookimpl
def close(device: Device) -> None:
    if device.name in _open:  # and stays there: another set of plugins may use it as well
        _open[device.name].programs.clear()


@hookimpl
def buffer_type(device: Device) -> HostBufferType:
    return _open[device.name].buffer_type


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    return None


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    host, arrays = _open[device.name], Arrays(graph.slots)
    program = host.programs.setdefault(graph.uid, [])
    with np.errstate(all="ignore"):
        for i, node in enumerate(graph.nodes):
            if host.cancelled:
                msg = "the step was cancelled"
                raise CancelledError(msg, where=device.name)
            try:
                if i == len(program):
                    program.append(compile_node(node, arrays))
                program[i]()
            except UmbelError:
                raise
            except MemoryError as error:
                msg = f"there is no room to compute {node.label}"
                do = "use -O host.dequantise=blocks, or a smaller --ubatch"
                raise OutOfMemoryError(msg, where=device.name, got=node, do=do) from error
            except Exception as error:
                msg, got = f"{node.label} failed", f"{type(error).__name__}: {error}"
                raise DeviceError(msg, where=device.name, got=got) from error


@hookimpl
def sync(device: Device) -> None:
    _open[device.name].cancelled = False  # all is done as it is told: nothing to wait for


@hookimpl
def forget(device: Device, uid: int) -> None:
    if device.name in _open:
        _open[device.name].programs.pop(uid, None)


@hookimpl
def cancel(device: Device) -> None:
    if device.name in _open:
        _open[device.name].cancelled = True


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    total, free = memory()
    host = _open.get(device.name)
    copies = host.buffer_type.used if host else 0
    return {"memory_total": total, "memory_free": free, "dequantised": copies}


def memory() -> tuple[int, int]:
    """(total, available) bytes of memory for this process; zeros where nobody tells."""
    total = free = 0
    with suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = _number(Path("/proc/meminfo"), r"^MemAvailable: +(\d+)") << 10 or total // 2
    for limit in _LIMITS:
        most = _number(limit, r"^(\d+)")
        if 0 < most < total:
            taken = _number(limit.parent / "memory.stat", r"^(?:anon|total_rss) (\d+)")
            total, free = most, min(free, max(most - taken, 0))
    return total, free


def _number(path: Path, pattern: str) -> int:
    """A number in a file of the system; 0 where there is none."""
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(pattern, path.read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def cpus() -> int:
    """The processors that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def set_threads(wanted: int) -> int:
    """Sets the thread count of the whole process, 0: as it was at first. Gives what is in use;
    where this BLAS cannot be asked, one for each processor."""
    most, blas = cpus(), _blas()
    if wanted > most:
        log.warning("--threads %d is more than the %d processors: %d it is", wanted, most, most)
    if blas is None:
        if wanted:
            log.warning("--threads has no effect on host:0: NumPy's BLAS has no such control")
        return most
    tell, ask, first = blas
    tell(min(wanted, most) or first)
    return int(ask())


@cache
def _blas() -> tuple[Callable[[int], object], Callable[[], int], int] | None:
    """How NumPy's BLAS is told and asked its number of threads, and which it was at first.

    It is in NumPy's own libraries (opened again they are the same), or in the process.
    """
    package = Path(np.__file__).parent
    own = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    for path, name in itertools.product([*map(str, own), None], _NAMES):
        with suppress(OSError, TypeError, AttributeError):
            library = ctypes.CDLL(path)
            tell = getattr(library, name.format("set_num_threads"))
            ask = getattr(library, name.format("get_num_threads"))
            return tell, ask, ask()
    return None
