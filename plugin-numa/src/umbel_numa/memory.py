"""Memory of the native engine: plain host memory, and weights in the layout of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from umbel.gguf.types import F16, F32, DType
from umbel.graph import Role, Tensor
from umbel.hookspecs import Device
from umbel.host.memory import HostBuffer

from umbel_numa.operations.products import PRODUCTS, READABLE
from umbel_numa.pages import fresh
from umbel_numa.state import StateBuffer
from umbel_numa.weights import NativeWeight, file_of

if TYPE_CHECKING:
    from umbel_numa.engine import Engine


_SMALL = 1 << 16  # bytes; who reads so few of a mapped file may get megabytes around them


@attrs.define(eq=False)
class NativeMemory:
    """What it is like, and how it is had."""

    engine: Engine
    # Names of weights that products read, and gathers. Of many alike only the first is asked
    # about, so this tells tables that nothing multiplies by, and no more.
    factors: set[str] = attrs.field(factory=set)
    tables: set[str] = attrs.field(factory=set)
    alignment: int = 64
    max_size: int = 1 << 62
    is_host: bool = True
    separate: bool = False
    in_place: bool = True

    def note(self, node: Tensor) -> None:
        """That this node will read its weight as a matrix."""
        assert node.op is not None
        storage = node.inputs[0].storage if node.inputs else node
        if storage.role is Role.WEIGHT and node.op.name in (*PRODUCTS, "get_rows"):
            (self.factors if node.op.name in PRODUCTS else self.tables).add(storage.name)

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, tensor: Tensor) -> DType:
        caches = tensor.name.startswith(("k_cache.", "v_cache."))
        return F16 if caches and tensor.dtype is F32 else tensor.dtype

    def allocate(self, nbytes: int, usage: str) -> HostBuffer | StateBuffer:
        state, numbers = usage == "state", self.engine.placement.numbers
        take = self.engine.slabs.take if state else fresh
        rows = HostBuffer(take(nbytes, usage))
        self.engine.binder.room.promise(rows.memory)
        dealt = state and len(numbers) > 1
        return StateBuffer(rows, numbers, self.engine.binder) if dealt else rows

    def store(self, tensor: Tensor, array: np.ndarray) -> NativeWeight:
        raw = np.array(array) if array.nbytes < _SMALL else np.ascontiguousarray(array)
        file = file_of(array)
        weight = NativeWeight(tensor, raw, self.engine, file)
        if file is not None:
            self.engine.meet(file)
        self.engine.weights.add(weight)
        table = tensor.name in self.tables - self.factors and tensor.dtype in READABLE
        if tensor.dtype is not F32 and not table:
            weight.packed()
        if weight.struct is None and not table and len(tensor.shape) > 1:
            weight.spread()
        return weight
