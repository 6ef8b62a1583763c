"""Caches whose heads were dealt over nodes, as steps read and write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import attrs
import numpy as np
from umbel.graph import Tensor
from umbel.hookspecs import Buffer, Slot

from umbel_numa.state import StateBuffer


@attrs.frozen
class Head:
    """One of so many heads that share the last axis of a tensor."""

    number: int
    heads: int

    @classmethod
    def all(cls, buffer: Buffer) -> Iterator[Head]:
        heads = buffer.heads if dealt(buffer) else 1
        return (cls(number, heads) for number in range(heads))


def deal(nodes: Sequence[Tensor], slots: Mapping[Tensor, Slot]) -> None:
    """Deals the heads of the caches of each attention, where that is possible; all other states
    stay as they are from now on, since programs will have their addresses."""
    for node in nodes:
        if node.op is not None and node.op.name == "kv_attention":
            caches, heads = node.inputs[3:5], node.inputs[1].shape[2]
            if all(_divides(t, slots[t.storage], heads) for t in caches):
                for t in caches:
                    _state(slots[t.storage]).deal(t.shape[0], heads)
    for slot in slots.values():
        if isinstance(slot.buffer, StateBuffer):
            slot.buffer.fixed = True


def _state(slot: Slot) -> StateBuffer:
    assert isinstance(slot.buffer, StateBuffer)
    return slot.buffer


def _divides(t: Tensor, slot: Slot, heads: int) -> bool:
    """Whether each node can have as many whole heads, each of which is whole blocks."""
    buffer, size = slot.buffer, t.dtype.row_bytes(t.shape[-1]) * t.shape[0]
    if not isinstance(buffer, StateBuffer) or buffer.fixed or buffer.heads:
        return False
    even = heads % len(buffer.numbers) == 0 and t.shape[-1] // heads % t.dtype.block == 0
    return even and t.base is None and slot.offset == 0 and buffer.nbytes == size


def dealt(buffer: Buffer) -> TypeGuard[StateBuffer]:
    return isinstance(buffer, StateBuffer) and buffer.heads > 0


def heads_of(raw: np.void, t: Tensor, buffer: StateBuffer) -> np.void:
    """A dealt cache (cells, heads * size) as (heads, cells, size)."""
    (cells, width), heads = t.shape, buffer.heads
    row = t.dtype.row_bytes(width // heads)
    raw["n"], raw["axes"] = (1, heads, cells, width // heads), 3
    raw["s"] = (heads * buffer.apart, buffer.apart, row, t.strides[-1])
    return raw


def head_of(raw: np.void, t: Tensor, buffer: Buffer, head: Head) -> np.void:
    """What belongs to one head, of a dealt cache or of a tensor of rows."""
    width = t.shape[-1] // head.heads
    if dealt(buffer):
        heads_of(raw, t, buffer)
        raw["n"], raw["axes"] = (1, 1, t.shape[0], width), 2
        raw["data"] += head.number * buffer.apart
    else:
        raw["n"][3] = width
        raw["data"] += head.number * t.dtype.row_bytes(width)
    return raw
