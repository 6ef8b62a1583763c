"""The native CPU engine of Umbel: C kernels chosen for the processor at run time."""

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo, Kernel, Option, SplitGraph, hookimpl
from umbel.host import cpus
from umbel.host import memory as machine_memory

from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory
from umbel_numa.support import unsupported

UMBEL_API = 1

DEVICE = Device("numa:0", "native kernels on the CPU", priority=100, reads_host=True)
MOST = 1024  # threads
_open: dict[str, tuple[Engine, NativeMemory]] = {}


@hookimpl
def devices() -> Sequence[Device]:
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    return [
        Option("threads", f"threads, up to {MOST}; 0: one for each processor", 0, _count),
        Option("precise", "activations stay float32: slower, exact", False, _yes),
    ]


def _count(text: str) -> int:
    """A number of threads; a ValueError at anything else."""
    number = int(text)
    if not 0 <= number <= MOST:
        msg = f"{number} is not from 0 to {MOST}"
        raise ValueError(msg)
    return number


def _yes(text: str) -> bool:
    """Of "true" and "false"; a ValueError at anything else."""
    return {"true": True, "false": False}[text.lower()]


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    engine = Engine(options.get("threads") or cpus(), precise=bool(options.get("precise")))
    _open[device.name] = engine, NativeMemory(engine)
    total, free = machine_memory()
    details = {"kernels": engine.kernels, "threads": engine.threads}
    return DeviceInfo(memory_total=total, memory_free=free, details=details)


@hookimpl
def close(device: Device) -> None:
    _open.pop(device.name)[0].close()


@hookimpl
def buffer_type(device: Device) -> NativeMemory:
    return _open[device.name][1]


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    engine, kind = _open[device.name]
    reason = unsupported(node, engine)
    if reason is None:
        kind.note(node)
    return reason


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    _open[device.name][0].compute(graph)


@hookimpl
def sync(device: Device) -> None:
    _open[device.name][0].cancel(False)


@hookimpl
def cancel(device: Device) -> None:
    if device.name in _open:
        _open[device.name][0].cancel(True)


@hookimpl
def forget(device: Device, uid: int) -> None:
    if device.name in _open:
        _open[device.name][0].forget(uid)


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    total, free = machine_memory()
    return {"memory_total": total, "memory_free": free}
