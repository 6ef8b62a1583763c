"""An opaque device in float16 that does nothing but lower and evaluate: no programs, no
surfaces, no driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from ane_ports import Split, computed
from umbel import gguf, loading
from umbel.gguf.types import F16, I32, DType, convert, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo, SplitGraph
from umbel.plan import Target
from umbel.runner import Runner, Settings
from umbel_ane.compiler.ir import Weight
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.lowering import Options, lower, unsupported
from umbel_ane.profile import Profile

DEVICE = Device("fake:0", "lowers and evaluates", priority=1, simulated=True)
LENGTHS, TOKENS = (64, 128, 256), (1, 4, 16, 64, 128)


@attrs.frozen(eq=False)
class Piece:
    handle: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.handle.size)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return np.array(self.handle[offset : offset + nbytes])

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.handle[offset : offset + raw.size] = raw

    def copy_from(self, *_: object) -> bool:
        return False


class Memory:
    alignment, max_size = 64, 1 << 32
    is_host = separate = in_place = False

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes

    def readable_by(self, device: Device) -> bool:
        return False

    def accepts(self, tensor: Tensor) -> DType:
        return I32 if tensor.dtype is I32 else F16

    def allocate(self, nbytes: int, usage: str) -> Piece:
        return Piece(np.full(nbytes, 0xFF, np.uint8))  # NaN, where it is float16

    def store(self, tensor: Tensor, array: np.ndarray) -> Piece:
        kept = np.ascontiguousarray(convert(array, tensor.dtype, self.accepts(tensor)))
        return Piece(kept.reshape(-1).view(np.uint8).copy())


@attrs.define(eq=False)
class Hooks:
    profile: Profile
    options: Options
    mode: str = "fp16"
    lowered: list[Lowered] = attrs.field(factory=list)
    _by_uid: dict[int, Lowered] = attrs.field(factory=dict)

    def op_supported(self, device: Device, node: Tensor) -> str | None:
        return unsupported(node, self.profile, self.options)

    def graph_compute(self, device: Device, graph: SplitGraph) -> None:
        def values(t: Tensor) -> np.ndarray:
            slot = graph.slots[t]
            raw = slot.buffer.read(slot.offset, t.nbytes)
            plain = (
                raw.view(np.int32) if t.dtype is I32 else dequantise(raw.view(np.float16), F16)
            )
            return plain.reshape(t.shape)

        def weight_of(t: Tensor) -> Weight:
            return Weight(t.content, lambda: values(t).astype(np.float16))

        if graph.uid not in self._by_uid:
            split = Split(graph.nodes, graph.outputs)
            made = lower(split, self.profile, weight_of, self.options)
            self._by_uid[graph.uid] = made
            self.lowered.append(made)
        given = {
            t: values(t) for t in graph.inputs if t.data is None and t.role.value != "weight"
        }
        given |= _gathered(self._by_uid[graph.uid], values)
        for t, array in computed(self._by_uid[graph.uid], given, self.mode).items():
            slot = graph.slots[t]
            slot.buffer.write(slot.offset, array.astype(np.float16))

    def status(self, *_: object) -> dict[str, object]:
        return {}

    def prepare(self, *_: object) -> None: ...

    def sync(self, *_: object) -> None: ...

    def cancel(self, *_: object) -> None: ...

    def forget(self, *_: object) -> None: ...


def _gathered(lowered: Lowered, values: Callable[[Tensor], np.ndarray]) -> dict[Any, Any]:
    """The weights that the host gathers rows of."""
    tables = (getattr(s, "tensor", None) for s in lowered.inputs.values())
    return {t: values(t) for t in tables if t is not None and t.role.value == "weight"}


def runner(path: Path, hooks: Hooks, **settings: Any) -> Runner:
    info = DeviceInfo(0, 0, "f16", TOKENS, LENGTHS, opaque=True)
    fake = Target(DEVICE, info, Memory(), hooks)
    definition = loading.define(gguf.open(path))
    given = {"ctx": 128, **settings}
    return Runner(
        definition, [fake, *loading.targets("host", None, None, False)], Settings(**given)
    )
