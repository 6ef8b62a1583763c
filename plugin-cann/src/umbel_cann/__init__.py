"""Ascend NPUs for Umbel, through CANN: the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo, Finding, Kernel, Option, SplitGraph, hookimpl

from umbel_cann import smi
from umbel_cann.acl.toolkit import required, toolkit
from umbel_cann.debug import modes
from umbel_cann.memory import BLOCK
from umbel_cann.nodes import nodes, number_of, visible
from umbel_cann.opened import Opened

UMBEL_API = 1
PRIORITY = 200

_DEBUG = "sync, log or dump, or some of them with commas: what is looked at, launch by launch"

_open: dict[str, Opened] = {}


@hookimpl
def devices() -> Sequence[Device]:
    found = toolkit()
    if found is not None and found.simulated:
        return [
            Device(f"cann:{i}", f"Ascend {found.chip}", PRIORITY, simulated=True)
            for i in range(found.simulated_devices)
        ]
    return [
        Device(f"cann:{i}", f"Ascend NPU, {path}", PRIORITY)
        for i, path in enumerate(visible(nodes()))
    ]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.001 <= value < 1e6:
        msg = "not a number of seconds from 0.001 on"
        raise ValueError(msg)
    return value


@hookimpl
def options() -> Sequence[Option]:
    kinds = ("auto", "f16", "f32")
    return [
        Option("dtype", "what values are computed in", "auto", choices=kinds),
        Option("debug", _DEBUG, "off", modes),
        Option("timeout", "seconds that a step may take", 600.0, _seconds),
    ]


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    found = required(device.name)
    how = options["dtype"], options["timeout"], options["debug"]
    opened = Opened.new(found, device.index, *how, kernels)
    _open[device.name] = opened
    free, total = opened.npu.memory()
    return DeviceInfo(
        total, free, opened.memory.dtype.name, grows=BLOCK, details=opened.details()
    )


@hookimpl
def close(device: Device) -> None:
    _open.pop(device.name).close()


@hookimpl
def buffer_type(device: Device) -> Any:
    return _open[device.name].memory


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    return _open[device.name].unsupported(node)


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    _open[device.name].programs.run(graph)


@hookimpl
def prepare(device: Device, graph: SplitGraph) -> None:
    _open[device.name].programs.prepare(graph)


@hookimpl
def sync(device: Device) -> None:
    _open[device.name].sync()


@hookimpl
def cancel(device: Device) -> None:
    if device.name in _open:
        _open[device.name].npu.cancelled = True


@hookimpl
def forget(device: Device, uid: int) -> None:
    if device.name in _open:
        _open[device.name].programs.forget(uid)


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    if opened := _open.get(device.name):
        return opened.status()
    found = toolkit()
    return smi.Health(found.root if found else None, number_of(device.index)).told()


@hookimpl
def doctor() -> Sequence[Finding]:
    from umbel_cann.findings import findings

    return findings()


@hookimpl
def commands(cli: Any) -> None:
    from umbel_cann.cli import add

    add(cli)
