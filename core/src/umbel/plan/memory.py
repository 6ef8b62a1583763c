"""What outlives a plan: the open devices, weights on those that use them, state, and the
arenas that plans share."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import numpy as np

from umbel.errors import OutOfMemoryError
from umbel.gguf import GGUFFile
from umbel.gguf.types import BY_NAME, DType, quantise
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, BufferType, Device, DeviceInfo, Slot


@attrs.frozen(eq=False, repr=False)
class Target:
    """An open device: what it told of itself, its memory, and the hooks of its owner."""

    device: Device
    info: DeviceInfo
    buffer_type: BufferType
    hooks: Any  # as of `hookspecs`, called by position
    lock: threading.RLock = attrs.field(factory=threading.RLock)  # whoever computes holds it
    name: str = attrs.field(init=False)
    compute_dtype: DType = attrs.field(init=False)
    _accepted: dict[Any, DType] = attrs.field(factory=dict, init=False)

    @name.default
    def _name(self) -> str:
        return self.device.name

    @compute_dtype.default
    def _compute_dtype(self) -> DType:
        return BY_NAME[self.info.compute_dtype]

    def accepts(self, weight: Tensor) -> DType:
        """The dtype in which the device holds this weight."""
        key = weight.name, weight.dtype, weight.shape
        if key not in self._accepted:
            self._accepted[key] = self.buffer_type.accepts(weight)
        return self._accepted[key]

    def reads(self, other: Target) -> bool:
        """Whether this device can use the memory of the other without a copy."""
        if other is self:
            return True
        kind = other.buffer_type
        shared = kind.is_host and self.device.reads_host
        return shared or kind.readable_by(self.device)


Progress = Callable[[int, int], None]  # bytes of the file that are loaded, and of all weights


class Weights:
    """Loads each weight of a file once for each device that uses it; constants likewise.

    `converted` says what a device made of them; `progress` is told after each weight, and
    within one where the device tells of it.
    """

    def __init__(self, file: GGUFFile, progress: Progress | None = None) -> None:
        self.file = file
        self.progress = progress
        self.refused: BaseException | None = None  # what `progress` raised
        self.loaded, self.total = 0, sum(t.nbytes for t in file.tensors.values())
        # device -> "q4_k to f16" -> tensors
        self.converted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.used: set[str] = set()
        self._slots: dict[tuple[str, Hashable], Slot] = {}

    def slot(self, tensor: Tensor, target: Target) -> Slot:
        """The memory of a weight or constant on `target`, filled at the first call."""
        key = (target.name, tensor.content)
        if key not in self._slots:
            source, array = self._source(tensor, target)
            store, counts = target.buffer_type.store, tensor.data is None
            tells = counts and getattr(target.buffer_type, "tells_progress", False)
            told: Any = (self._tell,) if tells else ()
            self._slots[key] = Slot(store(source, array, *told))
            if counts:
                self.loaded += array.nbytes
                self._tell(0)
            if self.refused is not None:  # by a caller: no fault of the device
                raise self.refused
        return self._slots[key]

    def _tell(self, more: int) -> None:
        """Of `more` bytes of the weight that is on its way, too."""
        if self.progress and self.refused is None:
            try:
                self.progress(self.loaded + more, max(self.loaded + more, self.total))
            except BaseException as error:
                self.refused = error

    def has(self, tensor: Tensor, target: Target) -> bool:
        """Whether it is loaded there."""
        return (target.name, tensor.content) in self._slots

    def _source(self, tensor: Tensor, target: Target) -> tuple[Tensor, np.ndarray]:
        """The constant, or the weight as the file has it: those of its rows that are wanted."""
        if tensor.data is not None:
            return tensor, tensor.data
        name = tensor.attrs.get("of", tensor.name)
        source = attrs.evolve(tensor, dtype=self.file.tensors[name].dtype, strides=())
        self.used.add(name)
        if source.dtype is not tensor.dtype:
            self.converted[target.name][f"{source.dtype} to {tensor.dtype}"] += 1
        return source, self.file.array(name)[tensor.attrs.get("rows", ...)]

    def nbytes(self, target: Target) -> int:
        """Bytes of weights that live on `target`."""
        return sum(s.buffer.nbytes for k, s in self._slots.items() if k[0] == target.name)


class Arenas:
    """One piece of compute memory per device, shared by all plans of a model.

    A plan that needs more than there is gets a new arena: `grown` then tells the others to go.
    """

    def __init__(self, grown: Callable[[], None] = lambda: None) -> None:
        self._buffers: dict[str, Buffer] = {}
        self.grown = grown

    def buffer(self, target: Target, nbytes: int) -> Buffer:
        kind = target.buffer_type
        if nbytes > kind.max_size:
            msg = f"{target.name} cannot give a plan the memory it needs in one piece"
            most = f"at most {kind.max_size} bytes"
            raise OutOfMemoryError(msg, expected=most, got=nbytes, do="lower --ubatch")
        if 0 < self.nbytes(target) < nbytes:
            del self._buffers[target.name]  # before there is a new one
            self.grown()
        if target.name not in self._buffers:
            self._buffers[target.name] = kind.allocate(nbytes, "compute")
        return self._buffers[target.name]

    def nbytes(self, target: Target) -> int:
        buffer = self._buffers.get(target.name)
        return buffer.nbytes if buffer else 0


RESERVED = 2  # rows of a state that belong to nobody


@attrs.frozen(eq=False)
class States:
    """KV caches and recurrent states on their devices.

    Only the reserved rows in front (scratch, the recurrent state before the first token) are
    zeroed: every other row is written before it is read, and until then takes no memory.
    """

    slots: dict[str, Slot] = attrs.field(factory=dict)
    tensors: dict[str, Tensor] = attrs.field(factory=dict)
    homes: dict[str, Target] = attrs.field(factory=dict)

    def add(self, tensor: Tensor, home: Target) -> None:
        """Memory for one state; `OutOfMemoryError` when the device has no room."""
        size = home.buffer_type.alloc_size(tensor)
        buffer = home.buffer_type.allocate(size, "state")
        self.slots[tensor.name] = Slot(buffer)
        self.tensors[tensor.name] = tensor
        self.homes[tensor.name] = home
        reserved = min(RESERVED, tensor.shape[0]) * self.row_bytes(tensor.name)
        with home.lock:
            buffer.write(0, np.zeros(reserved, np.uint8))

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """A copy of those rows, as bytes: (n, row bytes)."""
        size, buffer = self.row_bytes(name), self.slots[name].buffer
        with self.homes[name].lock:
            parts = [buffer.read(int(p[0]) * size, len(p) * size) for p in _stretches(rows)]
        return np.concatenate([np.empty(0, np.uint8), *parts]).reshape(-1, size)

    def write_rows(self, name: str, rows: np.ndarray, data: np.ndarray) -> None:
        """Puts (n, row bytes) into those rows."""
        size, at = self.row_bytes(name), 0
        with self.homes[name].lock:
            for part in _stretches(rows):
                written = data[at : at + len(part)]
                self.slots[name].buffer.write(int(part[0]) * size, written)
                at += len(part)

    def write(self, name: str, values: np.ndarray) -> None:
        """Puts float32 values into all of a state."""
        dtype = self.tensors[name].dtype
        with self.homes[name].lock:
            rows = values.reshape(-1, values.shape[-1])
            self.slots[name].buffer.write(0, as_stored(rows, dtype))

    def nbytes(self, target: Target) -> int:
        """Bytes of states that live on `target`."""
        return sum(self.slots[k].buffer.nbytes for k, h in self.homes.items() if h is target)

    def row_bytes(self, name: str) -> int:
        tensor = self.tensors[name]
        return tensor.dtype.row_bytes(tensor.size // tensor.shape[0])


def as_stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values as the memory of a tensor of that dtype holds them."""
    if dtype.numpy is not None:
        return np.ascontiguousarray(values, dtype.numpy)
    return quantise(values, dtype)


def _stretches(rows: np.ndarray) -> list[np.ndarray]:
    """The numbers in their order, cut where one does not follow on the other."""
    parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [part for part in parts if len(part)]
