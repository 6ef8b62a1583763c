"""The built-in backend `host`: NumPy on any machine. It runs every operation by its reference.

Quantised weights stay mapped. Those that matrix products read are dequantised once to float32
while the memory budget lasts, the others in pieces at each use; `-O host.dequantise=` and `-O
host.memory=` choose.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import numpy as np

from umbel import host_blas
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import UMBEL_API as UMBEL_API
from umbel.hookspecs import Device, DeviceInfo, Kernel, Option, SplitGraph, hookimpl
from umbel.host_kernels import Arrays, Step, compile_node
from umbel.host_memory import Budget, HostBufferType

log = logging.getLogger("umbel")
T = TypeVar("T")

DEVICE = Device("host:0", "NumPy on the CPU", priority=0)
_LIMITS = (  # of a container
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@attrs.define(eq=False)
class _Host:
    """What is known while the device is open."""

    buffer_type: HostBufferType
    programs: dict[int, list[tuple[Tensor, Step]]] = attrs.field(factory=dict)
    cancelled: bool = False


_open: dict[str, _Host] = {}


def _bytes(text: str) -> int:
    """A size such as 800M or 2G."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper(), 1)
    return _whole(text[:-1] if unit > 1 else text) * unit


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        msg = "a whole number that is not negative is wanted"
        raise ValueError(msg)
    return int(text)


@hookimpl
def devices() -> Sequence[Device]:
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    once = "once: keep float32 copies of the weights; blocks: never; auto: as memory allows"
    most = "bytes that those copies may take (auto: half of what is free)"
    return [
        Option("dequantise", once, "auto", choices=("auto", "once", "blocks")),
        Option("memory", most, None, _bytes),
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
    _open[device.name] = _Host(HostBufferType(Budget(int(str(limit)))))
    return DeviceInfo(
        memory_total=total,
        memory_free=free,
        reads_host=True,
        details={"numpy": np.__version__, "threads": host_blas.threads()},
    )


def _set_threads(wanted: int) -> None:
    most = host_blas.cpus()
    if wanted > most:
        log.warning("--threads %d is more than the %d processors: %d it is", wanted, most, most)
    if not host_blas.set_threads(min(wanted, most) or None) and wanted:
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
    host = _open[device.name]
    host.cancelled = False
    with np.errstate(all="ignore"):
        if graph.uid not in host.programs:
            arrays = Arrays(graph.slots)
            host.programs[graph.uid] = [
                (n, _named(n, partial(compile_node, n, arrays))) for n in graph.nodes
            ]
        for node, step in host.programs[graph.uid]:
            if host.cancelled:
                msg = "the step was cancelled"
                raise CancelledError(msg, where=device.name)
            _named(node, step)


def _named(node: Tensor, call: Callable[[], T]) -> T:
    """What the call returns; its errors name the node."""
    try:
        return call()
    except UmbelError:
        raise
    except MemoryError as error:
        msg = f"there is no room to compute {node.label}"
        do = "use -O host.dequantise=blocks, or a smaller --ubatch"
        raise OutOfMemoryError(msg, where=DEVICE.name, got=node, do=do) from error
    except Exception as error:
        msg = f"{node.label} failed"
        why = f"{type(error).__name__}: {error}"
        raise DeviceError(msg, where=DEVICE.name, got=why) from error


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
