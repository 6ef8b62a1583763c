"""The backend newname: a few operations in NumPy, as a place to begin.

The functions marked with `hookimpl` are all that Umbel calls; what they promise stands in
`umbel.hookspecs`. Here the device is the CPU with memory of its own, which the host does not
see: whatever crosses is copied. The README says in which order to replace what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F32, I32, DType, convert
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Device, DeviceInfo, SplitGraph, hookimpl

UMBEL_API = 1  # the contract that this is written for; Umbel refuses another

# `simulated` keeps `--device auto` away from it; take that out when there is hardware. Of real
# devices `auto` takes the one of the highest priority: host 0, a CPU engine 100, an NPU 200.
DEVICE = Device("newname:0", "the beginnings of a backend", priority=10, simulated=True)

# Each gets the inputs as arrays, and the operation's attributes by name. The definition of an
# operation is its reference, `umbel.ops.OPS[name].reference`.
KERNELS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqr": np.square,
    "sqrt": np.sqrt,
    "scale": lambda x, s, b=0.0: x * s + b,
    "sum_rows": lambda x: x.sum(axis=-1, keepdims=True),
    "mul_mat": lambda w, x: np.matmul(x, w.T),  # w (out, in), x (..., n, in)
}


@hookimpl
def devices() -> Sequence[Device]:
    """What is here? Asked whenever devices are listed, so it must be cheap: look for a device
    file or a library's path, load nothing. Nothing here is an empty list, not an error."""
    return [DEVICE]


@hookimpl
def open(device: Device, options: Mapping[str, object]) -> DeviceInfo:
    """Load libraries, probe the hardware, and say how it wants to be used. When that fails,
    raise an `umbel.errors.DeviceError` that says what to do."""
    return DeviceInfo(compute_dtype="f32")


@hookimpl
def buffer_type(device: Device) -> Memory:
    return Memory()


@hookimpl
def op_supported(device: Device, node: Tensor) -> str | None:
    """None, or the reason why not: users read it in `umbel plan`, and you in the suite.

    Activations come in the `compute_dtype`, weights as `Memory.accepts` says. What is refused
    is tried in simpler operations where it has a decomposition, else the host computes it.
    """
    assert node.op is not None
    if node.op.name not in KERNELS:
        return f"there is no kernel for {node.op.name}"
    if node.op.name == "mul_mat" and len(node.inputs[0].shape) > 2:
        return "mul_mat takes no batches of matrices"
    odd = next((t.dtype for t in (node, *node.inputs) if t.dtype is not F32), None)
    return f"{node.op.name} takes no {odd}" if odd else None


@hookimpl
def graph_compute(device: Device, graph: SplitGraph) -> None:
    """Computes the whole split, node after node.

    It comes again for every token with the same `graph.uid` and the same addresses: a real
    device compiles or records it once, and drops that in the hook `forget(device, uid)`. It may
    also return early, if the hook `sync(device)` waits.
    """
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            assert node.op is not None
            inputs = [_array(t, graph) for t in node.inputs]
            _array(node, graph)[...] = KERNELS[node.op.name](*inputs, **node.attrs)


def _array(t: Tensor, graph: SplitGraph) -> np.ndarray:
    """The tensor's window on its memory. It may be a view of another, its `storage`, with
    strides of its own; strides and offsets are in bytes."""
    slot = graph.slots[t.storage]
    memory, start = slot.buffer.handle, slot.offset + t.offset
    array: np.ndarray = np.ndarray(t.shape, t.dtype.numpy, memory, start, t.strides)
    return array


@attrs.define(eq=False)
class Piece:
    """A buffer: here an array of bytes. The host reaches it by `read` and `write` alone, which
    wait for what the device was told before."""

    handle: np.ndarray  # what `graph_compute` needs to find it: an address, an object

    @property
    def nbytes(self) -> int:
        return int(self.handle.size)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.handle[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.handle[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False  # no way from that device to this one but through the host

    def map(self, mode: str) -> np.ndarray:
        msg = "the host cannot see this memory"
        raise RuntimeError(msg)


@attrs.define(eq=False)
class Memory:
    """How memory lives on the device."""

    alignment: int = 64  # bytes, of each tensor
    max_size: int = 1 << 40  # bytes, of one buffer
    is_host: bool = False  # True: the CPU can use it, through `Piece.map`
    separate: bool = False  # True: each tensor gets a buffer of its own
    in_place: bool = True  # elementwise kernels may write over an input

    def alloc_size(self, tensor: Tensor) -> int:
        """With whatever a kernel reads or writes beyond the end."""
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        """Whether that device can use this memory as it is."""
        return False

    def accepts(self, tensor: Tensor) -> DType:
        """What a weight or a state becomes: float32 here, whatever it is in the file."""
        return I32 if tensor.dtype is I32 else F32

    def allocate(self, nbytes: int, usage: str) -> Piece:
        """For "state", "input" or "compute"; what it holds at first is anything."""
        try:
            return Piece(np.empty(nbytes, np.uint8))
        except MemoryError as error:
            msg = f"there is no room for {nbytes} bytes of {usage} memory"
            raise OutOfMemoryError(msg, got=nbytes) from error

    def store(self, tensor: Tensor, array: np.ndarray) -> Piece:
        """A weight as the file maps it, converted as `accepts` promises."""
        values = convert(array, tensor.dtype, self.accepts(tensor))
        return Piece(np.array(values).reshape(-1).view(np.uint8))
