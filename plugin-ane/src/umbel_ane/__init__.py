"""The Apple Neural Engine for Umbel: the hooks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo, Finding, Kernel, Option, SplitGraph, hookimpl

if TYPE_CHECKING:
    from umbel_ane.opened import Opened

UMBEL_API = 1
PRIORITY = 50
SIMULATOR = "UMBEL_ANE_SIMULATOR"  # names a profile: programs run on that, simulated

_open: dict[str, Opened] = {}


@hookimpl
def devices() -> Sequence[Device]:
    if profile := os.environ.get(SIMULATOR):
        return [Device("ane:0", f"Neural Engine, profile {profile}", PRIORITY, simulated=True)]
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return [Device("ane:0", "Apple Neural Engine", PRIORITY)]
    return []


@hookimpl
def options() -> Sequence[Option]:
    where, ways = ("auto", "ane", "host"), ("auto", "private", "coreml")
    weights = ("fp16", "palette8", "palette4")
    return [
        Option("driver", "the way to the engine", "auto", choices=ways),
        Option("canary", "compare programs with the host", "on", choices=("on", "off")),
        Option("weights", "in what programs hold matrices", "fp16", choices=weights),
        Option("attention", "where past tokens are attended to", "auto", choices=where),
        Option("head", "where logits are computed", "auto", choices=where),
    ]


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    from umbel_ane.opened import Opened

    simulator = os.environ.get(SIMULATOR) if device.simulated else None
    opened = Opened.new(device.name, options, simulator)
    _open[device.name] = opened
    return opened.info()


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
    _open[device.name].run(graph)


@hookimpl
def prepare(device: Device, graph: SplitGraph) -> None:
    _open[device.name].splits.prepare(graph)


@hookimpl
def sync(device: Device) -> None:
    _open[device.name].sync()


@hookimpl
def cancel(device: Device) -> None:
    if opened := _open.get(device.name):
        opened.splits.cancelled = True


@hookimpl
def forget(device: Device, uid: int) -> None:
    if opened := _open.get(device.name):
        opened.splits.forget(uid)


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    opened = _open.get(device.name)
    return opened.status() if opened else {}


@hookimpl
def doctor() -> Sequence[Finding]:
    from umbel_ane.findings import findings

    return findings()


@hookimpl
def commands(cli: Any) -> None:
    from umbel_ane.cli import add

    add(cli)
