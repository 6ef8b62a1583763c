"""Memory of the native engine: plain host memory, and weights in the layout of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from umbel.gguf.types import F16, F32, DType
from umbel.graph import Role, Tensor
from umbel.hookspecs import Buffer, Device

from umbel_numa.operations.products import PRODUCTS, READABLE
from umbel_numa.weights import NativeWeight, fresh

if TYPE_CHECKING:
    from umbel_numa.engine import Engine


@attrs.define(eq=False)
class NativeBuffer:
    """Plain memory."""

    memory: np.ndarray  # uint8

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    @property
    def handle(self) -> int:
        return int(self.memory.ctypes.data)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.memory[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False

    def map(self, mode: str) -> np.ndarray:
        return self.memory


@attrs.define(eq=False)
class NativeMemory:
    """The type of it."""

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

    def allocate(self, nbytes: int, usage: str) -> NativeBuffer:
        if usage == "state":
            return NativeBuffer(self.engine.states.take(nbytes))
        return NativeBuffer(fresh(nbytes, usage, self.alignment))

    def store(self, tensor: Tensor, array: np.ndarray) -> NativeWeight:
        weight = NativeWeight(tensor, np.ascontiguousarray(array), self.engine)
        table = tensor.name in self.tables - self.factors and tensor.dtype in READABLE
        if tensor.dtype is not F32 and not table:
            weight.packed()
        return weight
