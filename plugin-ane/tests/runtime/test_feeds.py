"""What surfaces are filled with: exactly what the sources say, whatever was there before."""

from __future__ import annotations

import numpy as np
import pytest
from plain_surface import Plain
from umbel.errors import DeviceError
from umbel.gguf.types import F16, F32, I32, Q8_0, quantise
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot
from umbel_ane.compiler.ports import Between, OneHot, Port, Rows, Source, Whole
from umbel_ane.memory import AneBuffer, AneMemory
from umbel_ane.profile import load
from umbel_ane.runtime.feeds import Feed, feed, stretches

MEMORY = AneMemory(load())


def _slot(tensor: Tensor, values: np.ndarray, usage: str = "input") -> Slot:
    buffer = MEMORY.allocate(tensor.nbytes + 128, usage)
    buffer.write(128, np.asarray(values, tensor.dtype.numpy))
    return Slot(buffer, 128)


def _made(source: Source, shape: tuple[int, ...], slots: dict) -> tuple[Feed, Plain]:
    surface = Plain(1 << 16)
    surface.memory.fill(0)  # as the pool gives it
    made = feed(source, Port("a00", shape, source), surface, slots)
    assert made is not None
    return made, surface


@pytest.mark.parametrize(("dtype", "padded"), [(F16, 0), (F32, 0), (F16, 11), (F32, 11)])
def test_a_whole_tensor_is_turned_cast_and_padded(dtype, padded) -> None:
    """(tokens, features) becomes [1, features, 1, tokens and zeros]."""
    x = Tensor((5, 7), dtype, Role.NODE, "x")
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(dtype.numpy)
    made, surface = _made(Whole(x, (1, 0)), (1, 7, 1, 5 + padded), {x: _slot(x, values)})
    made.fill()
    wanted = np.zeros((7, 5 + padded), np.float16)
    wanted[:, :5] = values.T
    assert np.array_equal(surface.values((7, 5 + padded)), wanted)


def test_a_shape_that_does_not_fit() -> None:
    x = Tensor((5, 7), F16, Role.NODE, "x")
    with pytest.raises(ValueError, match="cannot hold"):
        _made(Whole(x, (1, 0)), (1, 8, 1, 5), {x: _slot(x, np.zeros((5, 7)))})


def test_a_value_of_another_program_is_nobodys_to_fill() -> None:
    assert feed(Between(0), Port("a", (1, 1, 1, 16), Between(0)), Plain(64), {}) is None


def test_a_state_is_read_again_after_it_changed() -> None:
    a = Tensor((4, 8), F16, Role.STATE, "lora_a.blk")
    slots = {a: _slot(a, np.ones((4, 8)), "state")}
    made, surface = _made(Whole(a, (0, 1)), (1, 1, 4, 8), slots)
    for _ in range(3):
        made.fill()
    assert surface.locks == 1
    slots[a].buffer.write(128, np.full(8, 2, np.float16))
    made.fill()
    assert surface.locks == 2
    assert surface.values((4, 8))[:, 0].tolist() == [2, 1, 1, 1]
    slots[a].buffer.map("rw")[128:130].view(np.float16)[:] = 3  # by whoever maps it
    made.fill()
    assert surface.values((4, 8))[0, :2].tolist() == [3, 2]


def test_a_state_beyond_float16_is_named() -> None:
    a = Tensor((4, 8), F32, Role.STATE, "lora_a.blk")
    values = np.ones((4, 8), np.float32)
    values[2, 3] = 70000
    made, _ = _made(Whole(a, (1, 0)), (1, 8, 1, 4), {a: _slot(a, values, "state")})
    with pytest.raises(DeviceError, match=r"lora_a\.blk") as caught:
        made.fill()
    assert caught.value.got == "first at [3, 2]"


@pytest.mark.parametrize("dtype", [F16, F32, Q8_0], ids=str)
def test_rows_of_a_weight(dtype) -> None:
    """An embedding: rows by token, turned, decoded where they are quantised."""
    plain = np.random.default_rng(1).standard_normal((20, 32)).astype(np.float32)
    raw = quantise(plain, dtype)
    table = Tensor((20, 32), dtype, Role.WEIGHT, "token_embd.weight")
    memory = AneMemory(attrs_evolved(max_channels=8))  # a large table: it keeps its dtype
    ids = Tensor((3,), I32, Role.INPUT, "tokens")
    slots = {table: Slot(memory.store(table, raw)), ids: _slot(ids, np.array([7, 0, 7]))}
    made, surface = _made(Rows(table, ids, (1, 0)), (1, 32, 1, 16), slots)
    made.fill()
    rows = slots[table].buffer.rows([7, 0, 7])
    assert np.array_equal(surface.values((32, 16))[:, :3], rows.T.astype(np.float16))
    assert not surface.values((32, 16))[:, 3:].any()


def attrs_evolved(**changes):
    import attrs

    return attrs.evolve(load(), **changes)


def test_a_row_of_a_weight_beyond_float16_is_named() -> None:
    table = Tensor((20, 32), F32, Role.WEIGHT, "token_embd.weight")
    ids = Tensor((1,), I32, Role.INPUT, "tokens")
    values = np.zeros((20, 32), np.float32)
    values[5, 6] = 1e6
    kept = AneMemory(attrs_evolved(max_channels=8)).store(table, values)
    slots = {table: Slot(kept), ids: _slot(ids, np.array([5]))}
    made, _ = _made(Rows(table, ids, (1, 0)), (1, 32, 1, 16), slots)
    with pytest.raises(DeviceError, match=r"token_embd\.weight"):
        made.fill()


def test_one_hot_rows() -> None:
    ids = Tensor((3,), I32, Role.INPUT, "out_ids")
    slots = {ids: _slot(ids, np.array([4, 0, 4]))}
    made, surface = _made(OneHot(ids, 5, (0, 1)), (1, 1, 3, 5), slots)
    for chosen in ([4, 0, 4], [1, 2, 3]):
        slots[ids].buffer.write(128, np.array(chosen, np.int32))
        made.fill()
        assert np.array_equal(surface.values((3, 5)), np.eye(5)[chosen])


class Cache:
    """A KV cache of 40 cells whose rows are gathered through a table, the last cells last."""

    def __init__(self, sequences: int, length: int, axes: tuple[int, ...], pad: int) -> None:
        self.k = Tensor((40, 6), F16, Role.STATE, "k_cache.0")
        self.table = Tensor((sequences, length + 1), I32, Role.INPUT, "table")
        past = Tensor(
            (sequences, length), I32, base=self.table, strides=self.table.strides, name="past"
        )
        self.values = np.arange(240, dtype=np.float16).reshape(40, 6)
        zeros = np.zeros(self.table.shape)
        self.slots = {
            self.k: _slot(self.k, self.values, "state"),
            self.table: _slot(self.table, zeros),
        }
        plain, self.axes, self.pad = (sequences, length, 6), axes, pad
        self.turned = [plain[a] for a in axes]
        shape = (1, *self.turned[:2], self.turned[2] + pad)
        self.feed, self.surface = _made(Rows(self.k, past, axes), shape, self.slots)

    def write(self, row: int, value: float) -> None:
        self.values[row] = value
        self.slots[self.k].buffer.write(128 + row * 12, self.values[row])

    def step(self, *rows: list[int]) -> None:
        """Fills for a table, and compares with a plain gather."""
        ids = np.zeros(self.table.shape, np.int32)
        for into, row in zip(ids, rows, strict=True):
            into[-1 - len(row) : -1] = row
        self.slots[self.table].buffer.write(128, ids)
        self.feed.fill()
        got = self.surface.values((*self.turned[:2], self.turned[2] + self.pad))
        wanted = self.values[ids[:, :-1]].transpose(self.axes)
        assert np.array_equal(got[..., : self.turned[2]], wanted)
        assert not got[..., self.turned[2] :].any()


LAYOUTS = [((0, 1, 2), 0), ((0, 2, 1), 0), ((0, 2, 1), 3), ((2, 0, 1), 0), ((1, 2, 0), 0)]


@pytest.mark.parametrize(("axes", "pad"), LAYOUTS)
@pytest.mark.parametrize("sequences", [1, 3])
def test_rows_of_a_cache(axes, pad, sequences) -> None:
    """Whatever happened since the last step, what is gathered is what the cache holds: the
    table moves on, stays, starts again; rows are written before and after they are read."""
    cache = Cache(sequences, 8, axes, pad)
    rows: list[list[int]] = [[] for _ in range(sequences)]
    cache.step(*rows)
    for n in range(12):  # each step's token is written to a cell that the next one reads
        for i, row in enumerate(rows):
            cell = 1 + 13 * i + n
            cache.write(cell, 1000 + cell)
            row.append(cell)
        cache.step(*(row[-8:] for row in rows))
    cache.write(rows[0][-3], 5)  # an old row: a cell that was given back and taken again
    cache.step(*(row[-8:] for row in rows))
    cache.write(rows[0][-2], 6)
    rows[0].append(39)
    cache.step(*(row[-8:] for row in rows))  # it moves on for one of them alone
    cache.step(*(row[:3] for row in rows))


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_cache_at_random(seed) -> None:
    draw = np.random.default_rng(seed)
    cache, row = Cache(1, 8, (0, 2, 1), 0), [1]
    for _ in range(60):
        what = draw.integers(4)
        if what == 0:
            cache.write(int(draw.integers(1, 40)), float(draw.integers(1000)))
        elif what == 1:
            row = draw.integers(1, 40, draw.integers(1, 9)).tolist()
        else:
            cell = int(draw.integers(1, 40))
            cache.write(cell, float(draw.integers(1000)))
            row = [*row, cell][-8:]
        cache.step(row)


def test_padding_is_not_read_again() -> None:
    """Row 0 is written whenever a step has padding; what it held was as good."""
    cache = Cache(1, 8, (0, 2, 1), 0)
    cache.step([1, 2, 3])
    held = cache.values[0].copy()
    cache.write(0, 99)
    cache.values[0] = held
    cache.step([1, 2, 3, 4])


def test_a_table_that_moved_on_copies_one_row() -> None:
    """What was gathered before is not gathered again."""
    cache = Cache(1, 8, (0, 2, 1), 0)
    cache.step([1, 2, 3])
    cache.values[2] = 77  # behind the buffer's back: it is not read again
    buffer = cache.slots[cache.k].buffer
    buffer.memory[128 + 24 : 128 + 36] = cache.values[2].view(np.uint8)
    with pytest.raises(AssertionError):
        cache.step([1, 2, 3, 4])


def test_what_was_written_is_forgotten_after_a_while() -> None:
    buffer = AneBuffer(np.zeros(64, np.uint8), notes=True)
    for i in range(20000):
        buffer.write(i % 64, np.zeros(1, np.uint8))
    assert buffer.since(0) is None
    assert buffer.since(19998) == [(19998 % 64, 1), (19999 % 64, 1)]
    assert buffer.since(20000) == []


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([0, 0, 0, 5, 6, 7], [(0, 3, 0), (3, 6, 1)]),
        ([3], [(0, 1, 1)]),
        ([3, 9, 2, 2], [(0, 1, 1), (1, 2, 1), (2, 4, 0)]),
        ([1, 2, 2, 3], [(0, 2, 1), (2, 4, 1)]),
    ],
)
def test_stretches(ids, found) -> None:
    assert stretches(np.array(ids)) == found
