"""The native CPU engine of Umbel: C kernels chosen for the processor at run time."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo, Finding, Kernel, Option, SplitGraph, hookimpl
from umbel.host import memory as machine_memory

from umbel_numa import tuned, use
from umbel_numa.engine import Engine
from umbel_numa.library import library as load_library
from umbel_numa.memory import NativeMemory
from umbel_numa.options import OPTIONS
from umbel_numa.placement import balancing, placement
from umbel_numa.support import unsupported
from umbel_numa.topology import read

UMBEL_API = 1

log = logging.getLogger("umbel")

DEVICE = Device("numa:0", "native kernels on the CPU", priority=100, reads_host=True)
_open: dict[str, tuple[Engine, NativeMemory]] = {}


@hookimpl
def devices() -> Sequence[Device]:
    load_library()  # without it there is no device
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    return OPTIONS


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    topology = read()
    known = tuned.Records.of(topology, tuned.way(options))
    where = placement(options, topology, known.threads())
    precise = options.get("precise", False)
    engine = Engine(precise=precise, placement=where, tuned=known.best, known=use.recall)
    _open[device.name] = engine, NativeMemory(engine)
    if where.pinned and engine.pinned < len(where.cpus) - 1:  # the first is so in runs alone
        log.warning("the system refuses to pin threads to CPUs: they may leave their node")
    if len(where.numbers) > 1 and balancing():
        told = "the kernel moves pages between nodes (numa_balancing), against their placement"
        log.warning("%s: sysctl kernel.numa_balancing=0 stops it", told)
    total, free = machine_memory()
    return DeviceInfo(memory_total=total, memory_free=free, details=details(engine))


def _engine(device: Device) -> Engine | None:
    """That of a device, which another thread may be closing."""
    found = _open.get(device.name)
    return found and found[0]


def opened() -> Engine:
    """The open engine."""
    return _open[DEVICE.name][0]


def details(engine: Engine) -> dict[str, object]:
    """What there is to tell of it."""
    where = engine.placement
    return {
        "kernels": engine.kernels,
        "threads": engine.threads,
        "threads_prefill": where.count(where.prefill),
        "mode": where.mode,
        "nodes": [number for number in where.numbers if number >= 0],
        "pinned": where.pinned,
    }


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
    if engine := _engine(device):
        engine.cancel(True)


@hookimpl
def forget(device: Device, uid: int) -> None:
    if engine := _engine(device):
        engine.forget(uid)


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    total, free = machine_memory()
    found: dict[str, object] = {"memory_total": total, "memory_free": free}
    if engine := _engine(device):
        found |= {**details(engine), "pinned": engine.pinned, "memory": engine.bound}
    return found


@hookimpl
def doctor() -> Sequence[Finding]:
    from umbel_numa.findings import findings

    return findings()


@hookimpl
def commands(cli: Any) -> None:
    from umbel_numa.cli import add

    add(cli)
