"""A toy accelerator: everything that makes real ones awkward, in plain NumPy.

Here are the hooks, `machine` computes, `memory` holds. The README says which clause of the
contract stands where.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.graph import Role, Tensor
from umbel.hookspecs import Device, DeviceInfo, Finding, Kernel, Option, SplitGraph, hookimpl

from umbel_toy.machine import Machine
from umbel_toy.memory import Memory

UMBEL_API = 1

DEVICE = Device("toy:0", "a toy that computes in float16", priority=10, simulated=True)
CANNOT = ("set_rows", "kv_attention", "mul_mat_id", "top_k", "ssm_scan", "rope", "rope_cos_sin")
_open: dict[str, Machine] = {}


@hookimpl
def devices() -> Sequence[Device]:
    return [DEVICE]


@hookimpl
def options() -> Sequence[Option]:
    return [Option("memory", "bytes that it has", 1 << 30, int)]


@hookimpl
def open(device: Device, options: Mapping[str, Any], kernels: Sequence[Kernel]) -> DeviceInfo:
    size, tokens, lengths = options["memory"], (1, 4, 16, 64), (64, 256, 1024, 4096)
    _open[device.name] = Machine(size, {k.operation: k for k in kernels})
    return DeviceInfo(size, size, "f16", tokens, lengths, opaque=True)


@hookimpl
def close(device: Device) -> None:
    _open.pop(device.name).close()


@hookimpl
def buffer_type(device: Device) -> Memory:
    return _open[device.name].memory


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    assert node.op is not None
    name = node.op.name
    kernel = _open[device.name].kernels.get(name)
    if kernel is not None:
        return kernel.supported(node)
    if name in CANNOT:
        return f"it has no kernel for {name}"
    computed = [t for t in (node, *node.inputs) if t.storage.role is not Role.WEIGHT]
    odd = {t.dtype.name for t in computed} - {"f16", "i32"}
    return f"it cannot compute with {min(odd)}" if odd else None


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    _open[device.name].start(graph)


@hookimpl
def sync(device: Device) -> None:
    _open[device.name].wait()


@hookimpl
def cancel(device: Device) -> None:
    if device.name in _open:
        _open[device.name].stop()


@hookimpl
def forget(device: Device, uid: int) -> None:
    if device.name in _open:
        _open[device.name].programs.pop(uid, None)


@hookimpl
def status(device: Device) -> Mapping[str, object]:
    machine = _open.get(device.name)
    if machine is None:
        return {}
    return {"memory_free": machine.memory.left, "programs": len(machine.programs)}


@hookimpl
def doctor() -> Sequence[Finding]:
    return [Finding("ok", "the toy is made of software and works everywhere")]


@hookimpl
def commands(cli: Any) -> None:
    def run(arguments: object) -> int:
        print(*CANNOT, sep="\n")
        return 0

    cli.add_parser("toy", help="lists what a toy cannot do").set_defaults(run=run)
