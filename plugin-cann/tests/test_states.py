"""States take memory as their rows are written."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in import npu
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import F16, I32
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot
from umbel.ops import OPS
from umbel.state.cache import Cache, Sequence
from umbel_cann.chips import chip
from umbel_cann.memory import BLOCK, NpuMemory
from umbel_cann.states import Written, rows_of, written

ROWS, WIDE = 4097, 64


def memory_of(size: int = 1 << 40) -> NpuMemory:
    return NpuMemory(npu(size=size), chip("Ascend310B4"), F16)


def caches(memory: NpuMemory, layers: int = 2) -> dict[Tensor, Slot]:
    names = [f"{kind}_cache.{i}" for i in range(layers) for kind in "kv"]
    states = [Tensor((ROWS, WIDE), F16, Role.STATE, name) for name in names]
    sizes = [memory.alloc_size(t) for t in states]
    pairs = zip(states, sizes, strict=True)
    return {t: Slot(memory.allocate(size, "state")) for t, size in pairs}


def step(
    memory: NpuMemory, slots: dict[Tensor, Slot], n: int
) -> tuple[Slot, tuple[Written, ...]]:
    """What writes n rows into all of these states, and where its integers are."""
    build = Builder(OPS)
    cells = build.leaf(Role.INPUT, "cells", (n,), I32)
    new = build.leaf(Role.INPUT, "new", (n, WIDE), F16)
    nodes = [build.set_rows(state, new, cells) for state in slots]
    given = Slot(memory.allocate(64 * n, "compute"))
    return given, written(nodes, {**slots, cells: given})


def test_it_follows_the_rows() -> None:
    """In blocks; what was there stays; never more than the whole."""
    memory = memory_of()
    slots = caches(memory)
    for slot in slots.values():
        slot.buffer.write(0, np.arange(2 * WIDE, dtype=np.float16))
    given, (rows,) = step(memory, slots, 3)
    used = memory.heap.living
    assert used < 0.1 * sum(t.nbytes for t in slots)
    seen = []
    for last in (3, 2 * BLOCK - 1, 2 * BLOCK, 1000, 1001, ROWS - 1):
        given.buffer.write(0, np.array([1, last, 2], np.int32))
        rows.make_room()
        for t, slot in slots.items():
            found = rows_of(t, slot.buffer.nbytes)
            assert last < found <= ROWS
            back = slot.buffer.read(0, 4 * WIDE).view(np.float16)
            np.testing.assert_array_equal(back, np.arange(2 * WIDE, dtype=np.float16))
            assert not slot.buffer.read(4 * WIDE, 2 * WIDE * (found - 2)).any()
        seen.append(memory.moved)
    assert seen == [0, 0, 4, 8, 8, 12]
    assert memory.heap.living <= sum(memory.alloc_size(t) + 128 for t in slots) + 256


def test_rows_that_the_host_does_not_know() -> None:
    memory = memory_of()
    slots = caches(memory)
    _, (rows,) = step(memory, slots, 3)
    rows.make_room()
    assert all(rows_of(t, slot.buffer.nbytes) == ROWS for t, slot in slots.items())


def test_the_host_writes_beyond() -> None:
    """A saved sequence that is read in."""
    memory = memory_of()
    state, slot = next(iter(caches(memory).items()))
    row = np.full(WIDE, 7, np.float16)
    slot.buffer.write(3000 * row.nbytes, row)
    np.testing.assert_array_equal(
        slot.buffer.read(3000 * row.nbytes, row.nbytes).view("f2"), row
    )
    assert rows_of(state, slot.buffer.nbytes) >= 3001


def test_no_memory_left() -> None:
    """A typed error; what is there stays as it was."""
    memory = memory_of(16 << 20)
    slots = caches(memory, layers=20)
    given, (rows,) = step(memory, slots, 1)
    first = next(iter(slots.values())).buffer
    first.write(0, np.arange(WIDE, dtype=np.float16))
    given.buffer.write(0, np.array([ROWS - 1], np.int32))
    with pytest.raises(OutOfMemoryError, match="state memory"):
        rows.make_room()
    back = first.read(0, 2 * WIDE).view(np.float16)
    np.testing.assert_array_equal(back, np.arange(WIDE, dtype=np.float16))
    given.buffer.write(0, np.array([100], np.int32))
    with pytest.raises(OutOfMemoryError):
        rows.make_room(ROWS)
    rows.make_room()
    rows.make_room(2 * BLOCK)


# Tokens of the sequences that are in use at once.
MIXED = {
    1: [700],
    4: [1900, 200, 650, 90],
    16: [60, 1500, 300, 40, 220, 900, 75, 130, 410, 35, 260, 1100, 180, 55, 340, 95],
}


def memory_of_sequences(count: int) -> tuple[int, float, int, int]:
    """Of a context of 2,048 tokens for each: the tokens in use, the share of its memory that is
    taken; bytes of state, and bytes that are reserved for them."""
    memory, cache = memory_of(), Cache(BLOCK + 2048 * count, 0, block=BLOCK)
    states = [
        Tensor((BLOCK + 2048 * count, WIDE), F16, Role.STATE, f"k_cache.{i}") for i in range(8)
    ]
    slots = {t: Slot(memory.allocate(memory.alloc_size(t), "state")) for t in states}
    given, (rows,) = step(memory, slots, 1)
    sequences = [Sequence() for _ in range(count)]
    for token in range(max(MIXED[count])):
        for sequence, length in zip(sequences, MIXED[count], strict=True):
            if token < length:
                taken = cache.begin(sequence, 1)
                given.buffer.write(0, taken.cells)
                rows.make_room()
                cache.commit(sequence, [0], taken)
    state_bytes = sum(slot.buffer.nbytes for slot in slots.values())
    share = state_bytes / sum(t.nbytes for t in states)
    return sum(MIXED[count]), share, state_bytes, memory.heap.reserved


def most_of(count: int) -> float:
    """The share that their blocks take, with the one that is nobody's, and an eighth."""
    blocks = 1 + sum(-(-length // BLOCK) for length in MIXED[count])
    return (blocks * 9 / 8 + 1) * BLOCK / (2048 * count)


@pytest.mark.parametrize("count", MIXED)
def test_memory_of_sequences(count: int) -> None:
    """The blocks in use and the one that is nobody's, and an eighth at most."""
    tokens, share, state_bytes, reserved = memory_of_sequences(count)
    assert tokens / (2048 * count) < share < most_of(count)
    assert reserved < 2.1 * state_bytes + (8 << 20)
