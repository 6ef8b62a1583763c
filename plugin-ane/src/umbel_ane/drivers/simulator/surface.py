"""Surfaces: plain memory that stays where it is, read as the Neural Engine reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np

from umbel_ane import costs
from umbel_ane.drivers import AneError
from umbel_ane.drivers.simulator.faults import SimulatedCrash
from umbel_ane.mil.program import Type

DTYPES = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32, "bool": np.bool_}
DTYPES |= {"uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16}


@attrs.define(eq=False)
class Surface:
    """`nbytes` of memory; `dirty` once the host may have written it."""

    nbytes: int
    dirty: bool = True
    _memory: np.ndarray | None = None

    @classmethod
    def new(cls, nbytes: int) -> Surface:
        return cls(nbytes, memory=np.zeros(nbytes, np.uint8))

    @property
    def memory(self) -> np.ndarray:
        if self._memory is None:
            msg = "a surface was used after it was released"
            raise SimulatedCrash(msg)
        return self._memory

    @contextmanager
    def lock(self, *, read_only: bool = False) -> Iterator[np.ndarray]:
        memory = self.memory
        self.dirty |= not read_only
        if read_only:
            memory = memory.view()
            memory.flags.writeable = False
        yield memory

    def release(self) -> None:
        self._memory = None

    def values(self, kind: Type, *, packed: bool) -> np.ndarray:
        """Its bytes as values of that type: packed from byte 0, whatever layout whoever wrote
        it had in mind (constraint 20). Otherwise rows lie as far apart as there is room."""
        dims, dtype = tuple(d or 1 for d in kind.dims or ()), np.dtype(DTYPES[kind.dtype])
        needed = costs.nbytes(kind)
        if needed > self.nbytes:
            text = "IOSurfaces map failure"
            msg = f"a surface of {self.nbytes} bytes is bound where {kind} takes {needed}"
            raise AneError(msg, code=0x12, text=text, do="make the surface larger")
        if packed or len(dims) < 2:
            return np.asarray(self.memory[:needed].view(dtype).reshape(dims))
        rows = kind.size // dims[-1]
        pitch = self.nbytes // rows // dtype.itemsize * dtype.itemsize
        strides = [dtype.itemsize, pitch]
        for n in reversed(dims[1:-1]):
            strides.append(strides[-1] * n)
        steps = tuple(reversed(strides))
        made: np.ndarray = np.ndarray(dims, dtype, self.memory.data, 0, steps)
        return made
