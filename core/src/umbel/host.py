"""The built-in backend `host`: NumPy on any machine. It runs every operation by its reference.

Quantised weights stay mapped. Those that matrix products read are dequantised once to float32
while the memory budget lasts, the others in pieces at each use; `-O host.dequantise=` and `-O
host.memory=` choose.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import attrs
import numpy as np

from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import UMBEL_API as UMBEL_API
from umbel.hookspecs import Device, DeviceInfo, Kernel, Option, SplitGraph, hookimpl
from umbel.host_kernels import Arrays, Step, compile_node
from umbel.host_memory import Budget, HostBufferType

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
def open(
    device: Device, options: Mapping[str, object], kernels: Sequence[Kernel]
) -> DeviceInfo:
    total, free = memory()
    mode, limit = options.get("dequantise", "auto"), options.get("memory")
    if mode == "blocks" or limit is None:
        limit = {"once": 1 << 62, "blocks": 0}.get(str(mode), free // 2)
    _set_threads(int(str(options.get("threads") or 0)))
    used = threads()
    _open[device.name] = _Host(HostBufferType(Budget(int(str(limit))), used))
    return DeviceInfo(
        memory_total=total,
        memory_free=free,
        details={"numpy": np.__version__, "threads": used},
    )


def _set_threads(wanted: int) -> None:
    most = cpus()
    if wanted > most:
        log.warning("--threads %d is more than the %d processors: %d it is", wanted, most, most)
    if not set_threads(min(wanted, most) or None) and wanted:
        log.warning("--threads has no effect on host:0: this NumPy's BLAS has no such control")


@hookimpl
def close(device: Device) -> None:
    _open.pop(device.name, None)


@hookimpl
def buffer_type(device: Device) -> HostBufferType:
    return _open[device.name].buffer_type


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    return None


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    host, arrays = _open[device.name], Arrays(graph.slots)
    host.cancelled = False
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
            except Exception as error:
                raise _failure(node, error) from error


def _failure(node: Tensor, error: Exception) -> DeviceError:
    """What is told when a node fails."""
    if isinstance(error, MemoryError):
        msg = f"there is no room to compute {node.label}"
        do = "use -O host.dequantise=blocks, or a smaller --ubatch"
        return OutOfMemoryError(msg, where=DEVICE.name, got=node, do=do)
    msg = f"{node.label} failed"
    return DeviceError(msg, where=DEVICE.name, got=f"{type(error).__name__}: {error}")


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
    copies = host.buffer_type.budget.used if host else 0
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


def set_threads(n: int | None) -> bool:
    """Sets the thread count for the whole process, None as it was at first; False where this
    BLAS cannot be asked."""
    setter, first = _function("set_num_threads"), _first()
    if setter is not None:
        setter(n or first)
    return setter is not None


def threads() -> int:
    """The thread count in use; where this BLAS cannot be asked, one for each processor."""
    getter = _function("get_num_threads")
    return cpus() if getter is None else int(getter())


_first = cache(threads)


@cache
def _function(name: str) -> Callable[..., int] | None:
    """From NumPy's own libraries (opened again they are the same), or from the process."""
    package = Path(np.__file__).parent
    own = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    for path in [*map(str, own), None]:
        with suppress(OSError, TypeError):
            library = ctypes.CDLL(path)
            for function in (getattr(library, n.format(name), None) for n in _NAMES):
                if function is not None:
                    return function  # type: ignore[no-any-return]
    return None
