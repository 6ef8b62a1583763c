"""Whole models and their caches on pretended nodes: the same bits on each number of them."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import umbel_numa
from several_nodes import pretended
from umbel import gguf, loading
from umbel.gguf.types import BY_NAME
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel_numa.engine import Engine
from umbel_numa.library import library
from umbel_numa.memory import NativeMemory
from umbel_numa.state import StateBuffer

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"


def logits(name: str, kv: str = "f16") -> tuple[list[np.ndarray], bool]:
    """Of prefills and steps of two sequences, the keys of one turned in between; and whether
    caches were dealt over the nodes."""
    with contextlib.closing(gguf.open(ORACLES / f"{name}.gguf")) as file:
        definition = loading.define(file)
        settings = Settings(ctx=64, parallel=2, ubatch=16, kv=kv)
        runner = Runner(definition, loading.targets("numa", {}, None, False), settings)
        try:
            ids = np.random.default_rng(2).integers(0, definition.hparams.n_vocab, 40).tolist()
            one, two = Sequence(), Sequence()
            found = [runner.forward(one, ids).copy(), runner.forward(two, ids[:9]).copy()]
            found += [runner.decode([one, two], ids[:2]).copy()]
            if not runner.cache.slots:
                runner.shift(one, 2)
            found += [runner.decode([one, two], ids[2:4]).copy()]
            found += [runner.decode([one], ids[:1]).copy()]
            buffers = [slot.buffer for slot in runner.states.slots.values()]
            dealt = any(isinstance(b, StateBuffer) and b.heads for b in buffers)
        finally:
            runner.close()
    return found, dealt


@pytest.mark.parametrize(
    ("name", "kv", "heads"),
    [
        ("llama-e256-Q4_K", "f16", 1),
        *(("qwen3-wide", kv, 2) for kv in ("f32", "f16", "q8_0")),
        *(("qwen3moe", kv, 2) for kv in ("f32", "f16")),
        ("llama", "f16", 4),
        ("mamba", "f32", 1),
    ],
)
def test_models(on_nodes: Any, name: str, kv: str, heads: int) -> None:
    """The same logits, with the heads of caches dealt over the nodes where that is even."""
    results = []
    for nodes, more in ((1, {}), (2, {}), (2, {"each": 2, "experts": "whole"}), (4, {})):
        on_nodes(nodes, **more)
        got, dealt = logits(name, kv)
        results.append(got)
        assert dealt == (nodes > 1 and heads % nodes == 0)
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, expected)


def test_mirror(on_nodes: Any, monkeypatch: Any, caplog: Any) -> None:
    on_nodes(1)
    expected, _ = logits("llama-e256-Q4_K")
    for room, told in ((1 << 40, "MB more"), (1000, "distributed")):
        on_nodes(2, mode="mirror")
        monkeypatch.setattr("umbel_numa.engine.available", lambda _, room=room: room)
        caplog.clear()
        got, _ = logits("llama-e256-Q4_K")
        assert told in caplog.text
        assert umbel_numa.opened().met.copies == (room > 1000)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, other)


class Refusing:
    """The library on a system that refuses to place memory; it counts the questions."""

    def __init__(self, error: int) -> None:
        self.error, self.asked = error, 0

    def un_pages_bind(self, *_: int) -> int:
        self.asked += 1
        return -self.error

    un_pages_move = un_pages_where = un_pages_bind

    def __getattr__(self, name: str) -> Any:
        return getattr(library(), name)


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_system_that_places_no_memory(
    on_nodes: Any, monkeypatch: Any, caplog: Any, error: int
) -> None:
    """As in a container: the same answers, one line, and the status says so."""
    on_nodes(2)
    expected, _ = logits("qwen3-wide")
    refusing = Refusing(error)
    monkeypatch.setattr("umbel_numa.pages.library", lambda: refusing)
    on_nodes(2)
    caplog.clear()
    got, _ = logits("qwen3-wide")

    assert all(map(np.array_equal, got, expected))
    assert refusing.asked == 1
    told = f"{os.strerror(error)}: memory cannot be bound to a NUMA node"
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [told]
    assert umbel_numa.status(umbel_numa.DEVICE)["memory"] == f"not bound: {os.strerror(error)}"
    assert umbel_numa.opened().resident() == []


def cache(shape: tuple[int, int], dtype: str = "f32", nodes: int = 2) -> StateBuffer:
    nbytes = shape[0] * BY_NAME[dtype].row_bytes(shape[1])
    numa = Engine(placement=pretended(nodes))
    buffer = NativeMemory(numa).allocate(nbytes, "state")
    numa.close()
    assert isinstance(buffer, StateBuffer)
    return buffer


def test_a_dealt_cache_is_promised_until_it_is_touched() -> None:
    """And no longer the rows in whose place it is."""
    buffer = cache((1 << 14, 512))
    room = buffer.binder.room
    assert room._untouched() == buffer.nbytes
    buffer.deal(1 << 14, 2)
    assert room._untouched() == sum(n for _, n in room.promised) == buffer.nbytes
    buffer.write(0, np.ones(buffer.nbytes, np.uint8))
    assert room._untouched() == 0


def test_a_dealt_cache_is_still_read_and_written_by_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (10, 24), np.uint8)
    buffer = cache((10, 6))
    buffer.write(0, rows[:2])
    buffer.deal(10, 2)

    np.testing.assert_array_equal(buffer.read(0, 48), rows[:2].reshape(-1))
    before = buffer.read(24 * 7, 5)
    buffer.write(24 * 3, rows[3:7])
    buffer.write(24 * 7 + 5, rows[7:9].reshape(-1)[5:40])
    np.testing.assert_array_equal(buffer.read(24 * 3, 24 * 4), rows[3:7].reshape(-1))
    np.testing.assert_array_equal(buffer.read(24 * 7 + 5, 35), rows[7:9].reshape(-1)[5:40])
    np.testing.assert_array_equal(buffer.read(24 * 7, 5), before)
    assert buffer.read(17, 0).size == 0
    assert [(n, size) for n, _, size in buffer.areas()] == [(0, 120), (0, 120)]
    assert buffer.areas()[1][1] == buffer.handle + buffer.apart
    head = buffer.plain.memory[buffer.apart : buffer.apart + 12]
    np.testing.assert_array_equal(head, rows[0, 12:])
