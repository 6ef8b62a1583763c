"""The backend newname: a device that computes a few operations, as a place to begin.

The hooks and what they promise stand in `umbel.hookspecs`. This one keeps plain memory of its
own, so the core copies what the host has to see; `readable_by` and `is_host` are how to avoid
that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME, F32, DType, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device, DeviceInfo, Kernel, SplitGraph, hookimpl

UMBEL_API = 1

# `simulated` keeps `--device auto` away from it; take it out when there is hardware.
DEVICE = Device("newname:0", "the beginnings of a backend", priority=10, simulated=True)

KERNELS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "mul": np.multiply,
    "sub": np.subtract,
    "div": np.divide,
    "sqr": np.square,
    "sqrt": np.sqrt,
    "scale": lambda x, s, b=0.0: x * s + b,
    "sum_rows": lambda x: x.sum(axis=-1, keepdims=True),
}


@hookimpl
def devices() -> Sequence[Device]:
    """What is here? Look for a device file or a library's path; load nothing."""
    return [DEVICE]


@hookimpl
def open(
    device: Device, options: Mapping[str, object], kernels: Sequence[Kernel]
) -> DeviceInfo:
    """Loads what the device needs, asks what it can do."""
    return DeviceInfo(compute_dtype="f32")


@hookimpl
def buffer_type(device: Device) -> Memory:
    return Memory()


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    """None, or the reason why not, which `umbel plan` shows to the user."""
    assert node.op is not None
    if node.op.name not in KERNELS:
        return f"there is no kernel for {node.op.name}"
    odd = next((t.dtype for t in (node, *node.inputs) if t.dtype is not F32), None)
    return f"{node.op.name} takes no {odd}" if odd else None


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    """Runs the whole split. A real device compiles it once, by `graph.uid`."""
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            assert node.op is not None
            inputs = [_array(t, graph) for t in node.inputs]
            _array(node, graph)[...] = KERNELS[node.op.name](*inputs, **node.attrs)


def _array(t: Tensor, graph: SplitGraph) -> np.ndarray:
    """The tensor's window on its memory: offset and strides are in bytes."""
    slot = graph.slots[t.storage]
    memory = slot.buffer.handle
    start = slot.offset + t.offset
    array: np.ndarray = np.ndarray(t.shape, t.dtype.numpy, memory, start, t.strides)
    return array


@attrs.define(eq=False)
class Piece:
    """A buffer: here an array of bytes."""

    handle: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.handle.size)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.handle[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.handle[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        msg = "the host cannot see this memory"
        raise RuntimeError(msg)


@attrs.define(eq=False)
class Memory:
    """How memory lives on the device."""

    alignment: int = 64
    max_size: int = 1 << 40
    is_host: bool = False
    separate: bool = False
    in_place: bool = True

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, dtype: DType) -> DType:
        """Weights are float32 here, whatever they are in the file."""
        return dtype if dtype is BY_NAME["i32"] else F32

    def allocate(self, nbytes: int, usage: str) -> Piece:
        try:
            return Piece(np.empty(nbytes, np.uint8))
        except MemoryError as error:
            msg = f"there is no room for {nbytes} bytes of {usage} memory"
            raise OutOfMemoryError(msg, got=nbytes) from error

    def store(self, tensor: Tensor, array: np.ndarray) -> Piece:
        values = array if tensor.dtype is BY_NAME["i32"] else dequantise(array, tensor.dtype)
        return Piece(np.array(values).reshape(-1).view(np.uint8))
