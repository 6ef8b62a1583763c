"""A split as the native library runs it."""

from __future__ import annotations

import ctypes

import attrs
import numpy as np
from umbel.errors import OutOfMemoryError
from umbel.hookspecs import SplitGraph

from umbel_numa.library import library
from umbel_numa.weights import NativeWeight


@attrs.frozen(eq=False)
class Compiled:
    """What a split has become."""

    graph: SplitGraph  # whose buffers it has the addresses of
    steps: np.ndarray  # of library.STEP
    names: tuple[str, ...]  # of their operations
    tensors: np.ndarray  # of library.TENSOR
    wdata: int  # bytes of activations that each node prepares
    threads: int
    factors: tuple[NativeWeight, ...]  # weights that it multiplies with


class Program:
    """A compiled split in the library's memory."""

    def __init__(self, engine: int, compiled: Compiled) -> None:
        self.graph, self.names = compiled.graph, compiled.names
        self.threads, self.factors = compiled.threads, compiled.factors
        steps, tensors = compiled.steps, compiled.tensors
        parts = (steps.ctypes.data, len(steps), tensors.ctypes.data, len(tensors))
        self.handle = library().un_program_new(engine, *parts, compiled.wdata)
        if not self.handle:
            msg = "there is no room to compute the step"
            raise OutOfMemoryError(msg, do="use a smaller --ubatch")

    def times(self) -> np.ndarray:
        """(steps, 2) ns at work and waiting, of the first thread; counted from now on, and
        growing in place."""
        address, count = library().un_program_times(self.handle), len(self.names)
        if not address:
            msg = "there is no room to take times"
            raise OutOfMemoryError(msg)
        raw = (ctypes.c_uint64 * (2 * count)).from_address(address)
        return np.ctypeslib.as_array(raw).reshape(-1, 2)

    def free(self) -> None:
        library().un_program_free(self.handle)
        self.handle = 0
