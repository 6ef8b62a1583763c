"""Weights in their forms: as the file has them, packed, as float32; and where there is no
memory to pack them, or nothing that could be packed."""

from __future__ import annotations

import errno
import itertools
import logging
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import umbel_numa.engine
from umbel.errors import DeviceError, OutOfMemoryError
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
from umbel_numa.slabs import Slabs
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
    matrix, experts = stored(engine, dtype, raw), stored(engine, dtype, raw, 3)
    values = dequantise(raw, kind)
    x = rng.standard_normal((9, values.shape[1]), np.float32)
    with caplog.at_level(logging.WARNING, "umbel"):
        assert nmse(x @ values.T, run(engine, matrix, "mul_mat", x)) < 1e-10
    assert "there is no memory to pack 2 weights (w, ...): " in caplog.text
    ids = np.array([3, 41, 0], np.int32)
    np.testing.assert_array_equal(run(engine, matrix, "get_rows", ids), values[ids])
    chosen = rng.integers(0, 3, (9, 2)).astype(np.int32)
    wanted = np.einsum("tuoi,ti->tuo", values.reshape(3, 14, -1)[chosen], x)
    assert nmse(wanted, run(engine, experts, "mul_mat_id", x[:, None], chosen)) < 1e-10


def test_a_model_that_is_not_packed(load, oracle, oracles, no_room, caplog) -> None:
    """It gives the logits of the precise one, and one line for all of its weights: how many,
    and the first."""
    data = oracle("llama-e256")
    for kind in ("Q4_K", "IQ4_XS"):
        caplog.clear()
        runner = load(f"llama-e256-{kind}", kv="f32")
        shapes = [t.shape for t in runner.definition.file.tensors.values()]
        with caplog.at_level(logging.WARNING, "umbel"):
            rows = runner.forward(Sequence(), data["ids"].tolist(), every=True)
        assert np.abs(rows - data[kind]).max() < 1e-4
        (line,) = (record.getMessage() for record in caplog.records)
        matrices = sum(len(shape) > 1 for shape in shapes)
        assert f"to pack {matrices} weights (token_embd.weight, ...): " in line


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


# what is refused


def uneven(rows: int) -> np.ndarray:
    """Rows of 16 bits of which the last cannot be packed."""
    raw = np.ones((rows, 64), np.float16)
    raw[-1, 5] = np.nan
    return raw


def test_a_refused_weight_keeps_no_memory(engine, monkeypatch) -> None:
    """Of a slab that it shares with others."""
    real, taken = Slabs.take, list[np.ndarray]()

    def take(self: Slabs, *what: Any) -> np.ndarray:
        taken.append(real(self, *what))
        return taken[-1]

    monkeypatch.setattr(Slabs, "take", take)
    before = stored(engine, "f16", np.ones((100, 64), np.float16))
    kept = taken[0].copy()
    refused = stored(engine, "f16", uneven(20_000))
    after = stored(engine, "f16", np.ones((100, 64), np.float16))
    assert (bool(before.packed()), refused.packed(), bool(after.packed())) == (True, 0, True)
    assert taken[1].base is taken[2].base
    edge = pages.page_size()
    assert not taken[1][edge:-edge].any()
    np.testing.assert_array_equal(taken[0], kept)
    np.testing.assert_array_equal(taken[2], kept)


def test_nothing_is_packed_after_a_refusal() -> None:
    engine = Engine(1)
    weight = stored(engine, "f16", np.ones((160, 64), np.float16))
    packed = weight.segments[0].memory
    packed[:] = 255
    raw = uneven(32)[::-1]
    raw = np.concatenate([np.ones((16, 64), np.float16), raw, np.ones((112, 64), np.float16)])
    code = weights.library().un_pack(
        engine.handle, weight.struct.ctypes.data, raw.ctypes.data, 128
    )
    engine.close()
    assert code == 1
    written = (packed.reshape(10, -1) != 255).any(1)
    assert written.tolist() == [True] + [False] * 9


FORKED = """
import errno, os, resource, sys
import numpy as np
from umbel_numa import library
from umbel_numa.engine import Engine

lib, engine = library.library(), Engine(2)
kinds = library.STEP, library.TENSOR, library.WEIGHT
steps, tensors, weight = (np.zeros(1, kind).ctypes for kind in kinds)
program = lib.un_program_new(engine.handle, steps.data, 0, tensors.data, 0, 0)

def codes():
    packed = lib.un_pack(engine.handle, weight.data, 0, 0)
    return packed, lib.un_run(engine.handle, program, 2)

assert codes() == (0, 0)
child = os.fork()
if not child:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    os._exit(codes() != (-errno.ENOMEM, -errno.ENOMEM))
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in Linux's way")
def test_a_child_that_can_start_no_threads() -> None:
    """It is told why nothing was computed."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_cannot_be_started_are_told_as_such(engine, monkeypatch) -> None:
    raw = random_blocks((20, 64), BY_NAME["q8_0"], np.random.default_rng(8))
    weight = stored(engine, "q8_0", raw)
    real = weights.library()

    class Failing:
        def __getattr__(self, name: str) -> object:
            if name in ("un_pack", "un_run"):
                return lambda *_: -errno.EAGAIN
            return getattr(real, name)

    for module in (weights, umbel_numa.engine):
        monkeypatch.setattr(module, "library", Failing)
    for work in (
        lambda: stored(engine, "q8_0", raw),
        lambda: run(engine, weight, "mul_mat", np.ones((1, 64), np.float32)),
    ):
        with pytest.raises(DeviceError, match="cannot start 2 threads") as told:
            work()
        assert told.value.got == os.strerror(errno.EAGAIN)


def test_one_line_for_each_reason_and_file(engine, caplog, tmp_path: Path) -> None:
    """With the first that was stored; and told once."""
    windows = []
    for name in "ab":
        (tmp_path / name).write_bytes(uneven(1024).tobytes() * 2)
        with open(tmp_path / name, "rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        windows.extend(np.frombuffer(whole, np.float16).reshape(2, 1024, 64))
    kind, memory = BY_NAME["f16"], NativeMemory(engine, {"w"})
    kept = [
        memory.store(Tensor((1024, 64), kind, Role.WEIGHT, f"w{i}"), windows[i])
        for i in (1, 3, 0)  # of the first, of the other, of the first
    ]
    assert not any(weight.packed() for weight in kept)
    x = np.ones((1, 64), np.float32)
    good = stored(engine, "f16", np.ones((16, 64), np.float16))
    with caplog.at_level(logging.WARNING, "umbel"):
        for _ in range(2):
            run(engine, good, "mul_mat", x)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "the values of 2 weights (w1, ...) are too uneven to be packed: products in float32",
        "the values of w3 are too uneven to be packed: products in float32",
    ]
