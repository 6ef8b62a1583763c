"""One open engine: its threads, its kernels, and the programs that it was given."""

from __future__ import annotations

import ctypes
from typing import Any

import attrs
import numpy as np
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError
from umbel.gguf.types import DType
from umbel.hookspecs import SplitGraph

from umbel_numa.compile import compile_split
from umbel_numa.library import Format, library, variant
from umbel_numa.slabs import Slabs

_CANCELLED, _NO_MEMORY = 1, 2
ACT_F32 = 0


@attrs.define(eq=False)
class Engine:
    """Threads and kernels; everything but `cancel` comes with the device's lock held."""

    threads: int
    precise: bool = False  # activations stay float32
    kernels: str = attrs.field(factory=variant)
    handle: int = 0
    table: int = 0
    programs: dict[int, Program] = attrs.field(factory=dict)
    slabs: Slabs = attrs.field(factory=lambda: Slabs("weight"))
    states: Slabs = attrs.field(factory=lambda: Slabs("state"))

    def __attrs_post_init__(self) -> None:
        lib = library()
        self.table = lib.un_variant(self.kernels.encode())
        cpus = np.full(self.threads, -1, np.int32)
        nodes = np.zeros(self.threads, np.int32)
        self.handle = lib.un_engine_new(
            self.table, self.threads, cpus.ctypes.data, nodes.ctypes.data
        )
        if not self.handle:
            msg = f"the engine cannot start {self.threads} threads"
            raise DeviceError(msg, do="take fewer: --threads")

    def format(self, dtype: DType) -> Format:
        found: Any = library().un_format_of(self.table, dtype.number)
        form: Format = found.contents
        return form

    def packs(self, dtype: DType) -> bool:
        """Whether weights of this type are packed for products. F16 and BF16 lose a little in
        it: to be precise they stay as they are."""
        exact = self.precise and not dtype.quantised
        return not exact and bool(library().un_format_of(self.table, dtype.number))

    def form(self, dtype: DType) -> int:
        """How a product with a packed weight of this type wants its activations."""
        return ACT_F32 if self.precise else self.format(dtype).act

    def compute(self, graph: SplitGraph) -> None:
        program = self.programs.get(graph.uid)
        if program is None:
            program = self.programs[graph.uid] = Program.of(graph, self)
        code = library().un_run(self.handle, program.handle, self.threads)
        if code == _CANCELLED:
            msg = "the step was cancelled"
            raise CancelledError(msg)
        if code == _NO_MEMORY:
            msg = "there is no room to compute the step"
            raise OutOfMemoryError(msg, do="use a smaller --ubatch")

    def cancel(self, wanted: bool) -> None:
        library().un_cancel(self.handle, wanted)

    def forget(self, uid: int) -> None:
        program = self.programs.pop(uid, None)
        if program is not None:
            program.free()

    def close(self) -> None:
        for uid in list(self.programs):
            self.forget(uid)
        library().un_engine_free(self.handle)
        self.handle = 0


@attrs.define(eq=False)
class Program:
    """A compiled split."""

    handle: int
    graph: SplitGraph  # whose buffers it has the addresses of
    steps: int

    @classmethod
    def of(cls, graph: SplitGraph, engine: Engine) -> Program:
        steps, tensors, wdata = compile_split(graph, engine)
        lib = library()
        handle = lib.un_program_new(
            engine.handle,
            steps.ctypes.data,
            len(steps),
            tensors.ctypes.data,
            len(tensors),
            wdata,
        )
        if not handle:
            msg = "there is no room to compute the step"
            raise OutOfMemoryError(msg, do="use a smaller --ubatch")
        return cls(handle, graph, len(steps))

    def times(self) -> np.ndarray:
        """(steps, 2) ns at work and waiting, of the first thread; counted from now on."""
        address = library().un_program_times(self.handle)
        raw = (ctypes.c_uint64 * (2 * self.steps)).from_address(address)
        return np.ctypeslib.as_array(raw).reshape(-1, 2)

    def free(self) -> None:
        library().un_program_free(self.handle)
        self.handle = 0
