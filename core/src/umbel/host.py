"""The built-in backend `host`: NumPy on any machine. It runs every operation by its reference.

Quantised weights stay mapped. Those that matrix products read are dequantised once to float32
while the memory budget lasts, the others in pieces at each use; `-O host.dequantise=` and `-O
host.memory=` choose.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from umbel import host_blas
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import UMBEL_API as UMBEL_API
from umbel.hookspecs import Device, DeviceInfo, Kernel, Option, SplitGraph, hookimpl
from umbel.host_kernels import Arrays, Step, compile_node
from umbel.host_memory import Budget, HostBufferType

DEVICE = Device("host:0", "NumPy on the CPU", priority=0)


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
    number = text[:-1] if unit > 1 else text
    if int(number) < 0:
        raise ValueError(text)
    return int(number) * unit


@hookimpl
def devices() -> Sequence[Device]:
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    return [
        Option(
            "dequantise",
            "once: keep float32 copies of the weights; blocks: never; auto: as memory allows",
            "auto",
            choices=("auto", "once", "blocks"),
        ),
        Option(
            "memory",
            "bytes that those copies may take (auto: half of what is free)",
            None,
            _bytes,
        ),
        Option("threads", "threads of the BLAS library", None, int),
    ]


@hookimpl
def open(
    device: Device, options: Mapping[str, object], kernels: Sequence[Kernel]
) -> DeviceInfo:
    total, free = memory()
    mode, limit = options.get("dequantise", "auto"), options.get("memory")
    if limit is None:
        limit = {"once": 1 << 62, "blocks": 0}.get(str(mode), free // 2)
    if mode == "blocks":
        limit = 0
    threads = options.get("threads")
    if threads and not host_blas.set_threads(int(str(threads))):
        text = "this NumPy's BLAS has no thread control: --threads has no effect on host:0"
        warnings.warn(text, stacklevel=2)
    _open[device.name] = _Host(HostBufferType(Budget(int(str(limit)))))
    return DeviceInfo(
        memory_total=total,
        memory_free=free,
        reads_host=True,
        details={"numpy": np.__version__, "threads": host_blas.threads() or os.cpu_count()},
    )


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
    program = host.programs.get(graph.uid)
    if program is None:
        arrays = Arrays(graph.slots)
        computed = [n for n in graph.nodes if n.op is not None and not n.op.view]
        program = [(n, compile_node(n, arrays)) for n in computed]
        host.programs[graph.uid] = program
    host.cancelled = False
    with np.errstate(all="ignore"):
        for node, step in program:
            if host.cancelled:
                msg = "the step was cancelled"
                raise CancelledError(msg, where=device.name)
            try:
                step()
            except UmbelError:
                raise
            except Exception as error:
                raise _failure(node, error) from error


def _failure(node: Tensor, error: Exception) -> DeviceError:
    if isinstance(error, MemoryError):
        msg = f"there is no room to compute {node.label}"
        return OutOfMemoryError(msg, where=DEVICE.name, got=node)
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
    """(total, available) bytes of this machine's memory; zeros where it does not tell."""
    table = Path("/proc/meminfo")
    if table.exists():
        rows = dict(line.split(":", 1) for line in table.read_text().splitlines())
        total, free = (int(rows[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
        return total, free
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0, 0
    return total, total // 2
