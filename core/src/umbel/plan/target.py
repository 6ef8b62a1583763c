"""A device as a plan sees it: its answers, its memory and the calls of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from umbel.gguf.types import BY_NAME, DType
from umbel.graph import Tensor
from umbel.hookspecs import BufferType, Device, DeviceInfo, SplitGraph


def _nothing(*args: object) -> None:
    """The default of hooks that may be left out."""


@attrs.frozen(eq=False)
class Target:
    """One open device with its owner's hooks bound."""

    device: Device
    info: DeviceInfo
    buffer_type: BufferType
    op_supported: Callable[[Device, Tensor], str | None]
    graph_compute: Callable[[Device, SplitGraph], None]
    sync: Callable[[Device], None] = _nothing
    cancel: Callable[[Device], None] = _nothing
    forget: Callable[[Device, int], None] = _nothing
    lock: threading.RLock = attrs.field(factory=threading.RLock)  # one step at a time

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def compute_dtype(self) -> DType:
        return BY_NAME[self.info.compute_dtype]

    def reads(self, other: Target) -> bool:
        """Whether this device can use the memory of the other without a copy."""
        kind = other.buffer_type
        shared = kind.is_host and self.info.reads_host
        return other is self or shared or kind.readable_by(self.device)

    def __repr__(self) -> str:
        return f"<target {self.name}>"
