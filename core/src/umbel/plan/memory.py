"""What outlives a plan: weights on the devices that use them, state, and the arenas plans
share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from umbel.errors import OutOfMemoryError
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Slot
from umbel.plan.target import Target


class Weights:
    """Loads each weight once for each device that uses it; constants likewise.

    `fetch(name)` gives the array as the file maps it. `converted` says what a device made of
    it.
    """

    def __init__(self, fetch: Callable[[str], np.ndarray], infos: Mapping[str, Tensor]) -> None:
        self.fetch = fetch
        self.infos = infos  # the weights as the file has them
        self.converted: dict[str, dict[str, int]] = {}  # device -> "q4_k to f16" -> tensors
        self.used: set[str] = set()
        self._slots: dict[tuple[object, ...], Slot] = {}

    def slot(self, tensor: Tensor, target: Target) -> Slot:
        """The memory of a weight or constant on `target`, filled at the first call."""
        key: tuple[object, ...] = (target.name, tensor.name)
        if tensor.data is not None:
            content = (tensor.shape, tensor.dtype.name, tensor.data.tobytes())
            key = (target.name, *content)
        if key not in self._slots:
            self._slots[key] = Slot(self._store(tensor, target))
        return self._slots[key]

    def nbytes(self, target: Target) -> int:
        """Bytes of weights that live on `target`."""
        return sum(s.buffer.nbytes for k, s in self._slots.items() if k[0] == target.name)

    def _store(self, tensor: Tensor, target: Target) -> Buffer:
        if tensor.data is not None:
            return target.buffer_type.store(tensor, tensor.data)
        source = self.infos[tensor.name]
        self.used.add(tensor.name)
        if source.dtype is not tensor.dtype:
            kinds = self.converted.setdefault(target.name, {})
            kind = f"{source.dtype} to {tensor.dtype}"
            kinds[kind] = kinds.get(kind, 0) + 1
        return target.buffer_type.store(source, self.fetch(tensor.name))


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
            raise OutOfMemoryError(
                msg, expected=f"at most {kind.max_size} bytes", got=nbytes, do="lower --ubatch"
            )
        have = self._buffers.get(target.name)
        if have is None or have.nbytes < nbytes:
            if have is not None:
                self.grown()
            self._buffers[target.name] = kind.allocate(nbytes, "compute")
        return self._buffers[target.name]

    def nbytes(self, target: Target) -> int:
        buffer = self._buffers.get(target.name)
        return buffer.nbytes if buffer else 0


@attrs.define(eq=False)
class States:
    """KV caches and recurrent states on their devices, zeroed when made."""

    slots: dict[str, Slot] = attrs.field(factory=dict)
    tensors: dict[str, Tensor] = attrs.field(factory=dict)
    homes: dict[str, Target] = attrs.field(factory=dict)

    def add(self, tensor: Tensor, home: Target) -> None:
        """Memory for one state; `OutOfMemoryError` when the device has no room."""
        size = home.buffer_type.alloc_size(tensor)
        buffer = home.buffer_type.allocate(size, "state")
        chunk = np.zeros(min(size, 1 << 24), np.uint8)
        for at in range(0, size, max(chunk.size, 1)):
            buffer.write(at, chunk[: size - at])
        self.slots[tensor.name] = Slot(buffer)
        self.tensors[tensor.name] = tensor
        self.homes[tensor.name] = home

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """A copy of those rows, as bytes: (n, row bytes)."""
        size = self.row_bytes(name)
        buffer = self.slots[name].buffer
        parts = [buffer.read(int(a) * size, int(n) * size) for a, n in runs(rows)]
        return np.concatenate(parts).reshape(len(rows), size) if parts else np.empty((0, size))

    def write_rows(self, name: str, rows: np.ndarray, data: np.ndarray) -> None:
        """Puts (n, row bytes) into those rows."""
        size = self.row_bytes(name)
        at = 0
        for start, n in runs(rows):
            self.slots[name].buffer.write(start * size, data[at : at + n])
            at += n

    def row_bytes(self, name: str) -> int:
        tensor = self.tensors[name]
        return tensor.dtype.row_bytes(tensor.size // tensor.shape[0])


def runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of consecutive numbers in their order: [(first, length)]."""
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([starts, [len(rows)]]))
    return [(int(rows[s]), int(n)) for s, n in zip(starts, lengths, strict=True)]
