"""An open device: all its parts, and what it tells of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import attrs
from umbel.errors import CancelledError, OptionError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import Kernel

from umbel_cann import chips, smi
from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.brought import Brought
from umbel_cann.chips import Chip
from umbel_cann.compile import Programs, unsupported
from umbel_cann.debug import Debug
from umbel_cann.memory import NpuMemory, dtype_of
from umbel_cann.nodes import number_of
from umbel_cann.probing import Tried, tried
from umbel_cann.runtime import PROCESS, Npu


@attrs.frozen(eq=False)
class Opened:
    """One NPU in use."""

    npu: Npu
    chip: Chip
    memory: NpuMemory
    programs: Programs
    brought: Brought
    _health: smi.Health
    _tried: Tried | None

    @classmethod
    def new(
        cls,
        toolkit: Toolkit,
        index: int,
        dtype: str,
        timeout: float,
        debug: str = "off",
        kernels: Sequence[Kernel] = (),
    ) -> Opened:
        wanted = Debug.of(debug)
        wanted.prepare()
        npu = Npu(PROCESS.start(toolkit), index, timeout=timeout)
        try:
            found = tried(toolkit, index, npu.soc)
            kind = chips.tried(npu.soc, found.verdicts) if found else chips.chip(npu.soc)
            if npu.acl.missing(chips.QUANTISED) is not None:
                kind = attrs.evolve(kind, weight_quant=())
            if dtype == "f32" and not kind.float32:
                msg = f"a {kind.name} computes float16 alone"
                raise OptionError(msg, where="cann.dtype", expected="auto or f16", got=dtype)
            memory = NpuMemory(npu, kind, dtype_of(kind, dtype))
            brought = Brought.new(kernels, npu.acl)
            programs = Programs(npu, kind, memory, brought, wanted)
            npu.on_close += [programs.clear, memory.close]
            health = smi.Health(toolkit.root, number_of(index))
            return cls(npu, kind, memory, programs, brought, health, found)
        except BaseException:
            npu.close()
            raise

    def unsupported(self, node: Tensor) -> str | None:
        return unsupported(node, self.chip, self.npu.acl.missing, self.brought)

    def sync(self) -> None:
        """Waits; raises what went wrong, or that somebody cancelled."""
        try:
            self.npu.wait()
        finally:
            cancelled, self.npu.cancelled = self.npu.cancelled, False
        if cancelled:
            msg = "the step was cancelled"
            raise CancelledError(msg)

    def close(self) -> None:
        self.npu.close()

    def details(self) -> dict[str, object]:
        brought = "; ".join(f"{one.operation} of {one.origin}" for one in self.brought.every)
        return {
            "soc": self.npu.soc,
            "cann": self.npu.acl.toolkit.version,
            "dtype": self.memory.dtype.name,
            "memory_shared": self.npu.shared,
            "operators": self._tried.told if self._tried else "assumed: not tried",
            **({"kernels": brought} if brought else {}),
        }

    def status(self) -> Mapping[str, object]:
        """From any thread: of the device's health, and of the memory that was taken."""
        heap = self.memory.heap
        reserved, used = heap.reserved, heap.living
        found: dict[str, object] = {**self.details(), **self._health.told()}
        found |= smi.driver_memory(number_of(self.npu.index))
        with contextlib.suppress(UmbelError):
            found |= {"memory_total": self.npu.memory()[1], "memory_free": self.memory.free}
        found |= {"memory_reserved": reserved, "memory_used": used, "mallocs": heap.calls}
        return found | dict(self.programs.counts())
