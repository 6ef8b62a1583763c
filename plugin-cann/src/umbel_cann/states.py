"""States that grow: a context of thousands of tokens takes memory as its tokens come.

The core hands out rows from the front; which ones a step writes its integers tell before it
runs. So memory is there in time, some blocks of rows more than are in use. What has grown lies
elsewhere, and programs that know the old place are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import numpy as np
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot

from umbel_cann.memory import BLOCK, NpuBuffer

IDS = {"set_rows": 2, "kv_attention": 5}  # which input says where rows go
_PIECE = 64 << 20  # bytes that are taken at once, at most


@attrs.define(eq=False)
class Written:
    """The states whose rows these integers choose."""

    integers: Callable[[], np.ndarray | None]
    states: Mapping[Tensor, NpuBuffer]
    rows: int = 0  # that all of them have

    def make_room(self, least: int = 0) -> None:
        """What they are about to write has memory, and so have so many rows."""
        ids = self.integers()
        last = int(ids.max(initial=least - 1)) if ids is not None else 1 << 62
        if last < self.rows:
            return
        wanted = {t: min(t.shape[0], (last // BLOCK + 1) * BLOCK) for t in self.states}
        left = sum(n * row_bytes(t) for t, n in wanted.items())
        for t, rows in wanted.items():
            nbytes, buffer = rows * row_bytes(t), self.states[t]
            if buffer.nbytes < nbytes:
                assert buffer.grow is not None
                buffer.grow(buffer, nbytes, ahead=min(left, _PIECE))
            left -= nbytes
        self.rows = min(rows_of(t, b.nbytes) for t, b in self.states.items())


def written(nodes: Iterable[Tensor], slots: Mapping[Tensor, Slot]) -> tuple[Written, ...]:
    """The states that nodes write into."""
    found: dict[Tensor, dict[Tensor, NpuBuffer]] = {}
    for node in nodes:
        assert node.op is not None
        if node.op.name in IDS:
            ids = node.inputs[IDS[node.op.name]].storage
            changed = (node.inputs[i].storage for i in node.op.mutates)
            found.setdefault(ids, {}).update((s, _buffer(slots[s])) for s in changed)
    return tuple(Written(integers(ids, slots), states) for ids, states in found.items())


def integers(ids: Tensor, slots: Mapping[Tensor, Slot]) -> Callable[[], np.ndarray | None]:
    """What the host wrote last into an input; None where it is no input."""
    slot = slots[ids]
    if ids.role is not Role.INPUT:
        return lambda: None
    buffer = _buffer(slot)
    return lambda: buffer.integers.get(slot.offset)


def _buffer(slot: Slot) -> NpuBuffer:
    assert isinstance(slot.buffer, NpuBuffer)
    return slot.buffer


def row_bytes(state: Tensor) -> int:
    return state.nbytes // state.shape[0]


def rows_of(state: Tensor, nbytes: int) -> int:
    """How many rows of a state lie in its memory, which is padded."""
    return min(state.shape[0], (nbytes - 32) // row_bytes(state))
