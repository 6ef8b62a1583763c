"""Weights in their forms: as the file has them, packed, as float32; and where there is no
memory to pack them, or nothing that could be packed."""

from __future__ import annotations

import itertools
import logging
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME, dequantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel.state import Sequence
from umbel_kit.compare import nmse
from umbel_kit.conformance.inputs import random_blocks
from umbel_numa import pages, weights
from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory
from umbel_numa.pages import Room
from umbel_numa.weights import NativeWeight

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
PACKED += ["iq4_nl", "iq4_xs", "mxfp4"]
_uids = itertools.count(1 << 53)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(2)
    yield engine
    engine.close()


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(room: Room, nbytes: int, usage: str) -> None:
        msg = "there is no room"
        raise OutOfMemoryError(msg, got=nbytes)

    monkeypatch.setattr(Room, "take", refuse)


def stored(engine: Engine, dtype: str, raw: np.ndarray, stack: int = 0) -> NativeWeight:
    kind = BY_NAME[dtype]
    shape: tuple[int, ...] = len(raw), raw.shape[1] // kind.block_bytes * kind.block
    if kind.numpy is not None:
        shape = raw.shape
    if stack:
        shape = stack, shape[0] // stack, shape[1]
        raw = raw.reshape(*shape[:2], -1)
    return NativeMemory(engine, {"w"}).store(Tensor(shape, kind, Role.WEIGHT, "w"), raw)


def run(engine: Engine, weight: NativeWeight, op: str, *given: np.ndarray) -> np.ndarray:
    """An operation on a weight and inputs."""
    build, memory = Builder(OPS), NativeMemory(engine)
    w = build.leaf(Role.WEIGHT, "w", weight.tensor.shape, weight.tensor.dtype)
    kinds = {"f": BY_NAME["f32"], "i": BY_NAME["i32"]}
    inputs = [
        build.leaf(Role.INPUT, f"x{i}", x.shape, kinds[x.dtype.kind])
        for i, x in enumerate(given)
    ]
    node = build.apply(OPS[op], w, *inputs)
    slots = {t: Slot(memory.allocate(t.nbytes, "compute")) for t in (*inputs, node)}
    for t, array in zip(inputs, given, strict=True):
        slots[t].buffer.write(0, array)
    slots[w] = Slot(weight)
    graph = SplitGraph(next(_uids), (node,), (w, *inputs), (node,), slots)
    engine.compute(graph)
    engine.forget(graph.uid)
    return slots[node].buffer.read(0, node.nbytes).view(np.float32).reshape(node.shape)


@pytest.mark.parametrize("dtype", PACKED)
def test_no_memory_to_pack(engine, no_room, caplog, dtype) -> None:
    """Products, experts and gathers of the rows as they lie; a line says so."""
    kind, rng = BY_NAME[dtype], np.random.default_rng(2)
    raw = random_blocks((42, 2 * kind.block), kind, rng)
    with caplog.at_level(logging.WARNING, "umbel"):
        matrix, experts = stored(engine, dtype, raw), stored(engine, dtype, raw, 3)
    assert "no memory to pack weights" in caplog.text
    values = dequantise(raw, kind)
    x = rng.standard_normal((9, values.shape[1]), np.float32)
    assert nmse(x @ values.T, run(engine, matrix, "mul_mat", x)) < 1e-10
    ids = np.array([3, 41, 0], np.int32)
    np.testing.assert_array_equal(run(engine, matrix, "get_rows", ids), values[ids])
    chosen = rng.integers(0, 3, (9, 2)).astype(np.int32)
    wanted = np.einsum("tuoi,ti->tuo", values.reshape(3, 14, -1)[chosen], x)
    assert nmse(wanted, run(engine, experts, "mul_mat_id", x[:, None], chosen)) < 1e-10


def test_a_model_that_is_not_packed(load, oracle, oracles, no_room, caplog) -> None:
    """It gives the logits of the precise one, and one line for all of its weights."""
    data = oracle("llama-e256")
    for kind in ("Q4_K", "IQ4_XS"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "umbel"):
            runner = load(f"llama-e256-{kind}", kv="f32")
        assert len(caplog.records) == 1
        rows = runner.forward(Sequence(), data["ids"].tolist(), every=True)
        assert np.abs(rows - data[kind]).max() < 1e-4


def test_more_than_the_machine_has(engine, monkeypatch) -> None:
    """Memory that the system would promise, but does not have, is not asked for."""
    monkeypatch.setattr(pages, "machine_memory", lambda: (1 << 30, 3 << 20))
    raw = np.zeros((1 << 12, 34 * 32), np.uint8)  # 4.25 MiB
    assert stored(engine, "q8_0", raw).packed() == 0
    assert stored(engine, "q8_0", raw[: 1 << 10]).packed() != 0


def test_the_machine_is_seldom_asked_what_it_has(monkeypatch) -> None:
    """Again only when an eighth of what it said is taken, or for another model."""
    asked = []
    monkeypatch.setattr(pages, "machine_memory", lambda: asked.append(1) or (1000, 800))
    room = Room()
    for _ in range(20):
        room.take(10, "weight")
    assert len(asked) == 2
    room.ask_again()
    room.take(10, "weight")
    assert len(asked) == 3
    with pytest.raises(OutOfMemoryError):
        room.take(801, "weight")


@pytest.mark.parametrize("dtype", [*PACKED, "f16", "f32"])
def test_nothing(engine, dtype) -> None:
    """Weights without rows, and inputs without."""
    kind = BY_NAME[dtype]
    row = kind.block if kind.numpy is not None else kind.block_bytes
    raw = np.zeros((0, row), kind.numpy or np.uint8)
    x = np.zeros((3, kind.block), np.float32)
    assert run(engine, stored(engine, dtype, raw), "mul_mat", x).shape == (3, 0)
    raw = np.zeros((17, row), kind.numpy or np.uint8)
    assert run(engine, stored(engine, dtype, raw), "mul_mat", x[:0]).shape == (0, 17)


@pytest.mark.parametrize("bits", [0x7E00, 0x7C00, 0xFC00])  # NaN and the infinities
def test_values_that_are_not_finite(engine, bits) -> None:
    """They spoil their own row and no other."""
    kind, rng = BY_NAME["q8_0"], np.random.default_rng(4)
    raw = random_blocks((20, 64), kind, rng)
    good = dequantise(raw, kind)
    raw[7, :2] = np.array([bits], "<u2").view(np.uint8)
    x = rng.standard_normal((3, 64), np.float32)
    got = run(engine, stored(engine, "q8_0", raw), "mul_mat", x)
    others = np.arange(20) != 7
    assert not np.isfinite(got[:, 7]).all()
    assert nmse((x @ good.T)[:, others], got[:, others]) < 1e-3


# forms


def test_forms(engine) -> None:
    """Each is made once, when it is asked for, and all have the same values."""
    kind, rng = BY_NAME["q4_0"], np.random.default_rng(5)
    raw = random_blocks((33, 64), kind, rng)
    weight = stored(engine, "q4_0", raw)
    packed, values = weight.packed(), weight.values()
    assert packed
    assert weight.rows() == 0  # packed ones are gathered from as well
    assert (weight.packed(), weight.values()) == (packed, values)
    np.testing.assert_array_equal(weight._values, dequantise(raw, kind))
    np.testing.assert_array_equal(weight.read(0, raw.nbytes), raw.reshape(-1))
    assert weight.nbytes > weight._values.nbytes
    plain = stored(engine, "f32", np.ones((4, 5), np.float32))
    assert plain.values() == plain.rows() == plain.handle
    assert plain.packed() == 0


def test_views_of_converted_weights(engine) -> None:
    """A view of a weight whose values are made floats begins where its rows do."""
    kind, rng = BY_NAME["q8_0"], np.random.default_rng(6)
    raw = random_blocks((6, 64), kind, rng)
    build, memory = Builder(OPS), NativeMemory(engine)
    w = build.leaf(Role.WEIGHT, "w", (6, 64), kind)
    part = build.view(w, axis=0, start=2, stop=5)
    x = build.leaf(Role.INPUT, "x", (3, 64), BY_NAME["f32"])
    node = build.mul(x, part)
    slots = {t: Slot(memory.allocate(t.nbytes, "compute")) for t in (x, node)}
    slots[w] = Slot(memory.store(w, raw))
    given = rng.standard_normal((3, 64), np.float32)
    slots[x].buffer.write(0, given)
    engine.compute(SplitGraph(next(_uids), (part, node), (w, x), (node,), slots))
    got = slots[node].buffer.read(0, node.nbytes).view(np.float32).reshape(3, 64)
    np.testing.assert_array_equal(got, given * dequantise(raw, kind)[2:5])


# pages


def dropped(engine: Engine, monkeypatch: pytest.MonkeyPatch, raw: np.ndarray) -> int:
    """How many bytes of a stored weight are given back to the system."""
    given: list[int] = []
    real = weights.library()

    class Watched:
        def __getattr__(self, name: str) -> object:
            if name == "un_pages_drop":
                return lambda at, nbytes: given.append(nbytes)
            return getattr(real, name)

    with monkeypatch.context() as patch:
        patch.setattr(weights, "library", Watched)
        assert stored(engine, "q8_0", raw).packed()
    return sum(given)


def test_only_pages_of_a_file_are_dropped(engine, monkeypatch, tmp_path: Path) -> None:
    """Anonymous memory would be lost: arrays, and mappings that somebody may write to."""
    rng = np.random.default_rng(7)
    raw = random_blocks((2048, 64), BY_NAME["q8_0"], rng)
    path = tmp_path / "w"
    path.write_bytes(raw.tobytes())
    frozen = raw.copy()
    frozen.flags.writeable = False
    with open(path, "r+b") as file:
        private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    anonymous = mmap.mmap(-1, raw.nbytes)
    anonymous[:] = raw.tobytes()
    for memory in (private, anonymous):
        array = np.frombuffer(memory, np.uint8).reshape(raw.shape)
        assert dropped(engine, monkeypatch, array) == 0
        array.flags.writeable = False
        assert dropped(engine, monkeypatch, array) == 0
    for array in (raw, frozen, frozen[:100]):
        assert dropped(engine, monkeypatch, array) == 0
    window = np.frombuffer(shared, np.uint8).reshape(raw.shape)
    assert dropped(engine, monkeypatch, window) == raw.nbytes
    assert dropped(engine, monkeypatch, window[3:2000]) == 1997 * raw.shape[1]
    assert dropped(engine, monkeypatch, window[3:9]) == 0  # so little is copied
    weight = stored(engine, "q8_0", window)  # dropped, it is read from the file again
    np.testing.assert_array_equal(weight.read(0, raw.nbytes), raw.reshape(-1))
