"""A model gives the same bits however the machine is shared out, and lies where it should."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import umbel_numa
from inside import MBIND, MOVE_PAGES, NUMA_CALLS, in_child, refuse, running_on, where
from machines import Machine
from models import DENSE, EXPERTS, LONG, STORIES, expected, loaded, logits, prompt
from umbel.gguf.types import F32
from umbel.graph import Role, Tensor
from umbel.state import Sequence
from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory
from umbel_numa.placement import placement
from umbel_numa.state import StateBuffer
from umbel_numa.topology import MODES, read
from umbel_numa.weights import NativeWeight

BALANCING = Path("/proc/sys/kernel/numa_balancing")


@pytest.fixture(autouse=True, scope="module")
def _whole(machine: Machine) -> None:
    """All of a model runs on the engine."""
    with loaded(STORIES, "off") as runner:
        lacks = {p.origin for step in runner.usual for p in runner.elsewhere(runner.plan(step))}
    assert not lacks


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, mode) for name in (DENSE, EXPERTS) for mode in MODES),
        *((name, mode) for name in (STORIES, "llama-e256-Q4_0") for mode in ("auto", "mirror")),
        (LONG, "distribute"),
    ],
)
def test_every_mode_gives_the_same_bits(name, mode):
    assert logits(name, mode) == expected(name)


@pytest.mark.parametrize("name", [STORIES, DENSE, EXPERTS])
def test_fewer_nodes_give_the_same_bits(machine, name):
    groups = list(machine.threads.values())
    for count in {1, len(groups) // 2}:
        with running_on({cpu for cpus in groups[:count] for cpu in cpus}):
            assert logits(name, "distribute") == expected(name), f"{count} nodes"


@pytest.mark.parametrize("name", ["llama-e256-Q4_0", DENSE])
@pytest.mark.parametrize("mode", ["distribute", "mirror"])
def test_weights_lie_where_they_are_read(machine, native, name, mode):
    """99 % of the pages at least, by the kernel's answer; and the engine says the same."""
    nodes, page = len(machine.nodes), native.un_pages_size()
    with loaded(name, mode) as runner:
        runner.forward(Sequence(), prompt(name))
        segments = [s for s in umbel_numa.opened().segments if s.number >= 0]
        lies = [where(native, s.memory.ctypes.data, s.nbytes, nodes) for s in segments]
        resident, misplaced = umbel_numa.opened().resident(), umbel_numa.opened().misplaced()

    pages = sum(sum(found.values()) for found in lies)
    right = sum(found.get(s.number, 0) for s, found in zip(segments, lies, strict=True))
    assert {s.number for s in segments} == set(machine.threads)
    assert right >= 0.99 * pages
    assert misplaced == (pages - right) * page
    copies = len(machine.threads) if mode == "mirror" else 1
    whole = runner.definition.file.path.stat().st_size * copies
    assert sum(resident) == pytest.approx(whole, rel=0.5)
    assert min(resident) > 0.5 * max(resident)


@pytest.fixture
def kept(machine: Machine, tmp_path: Path) -> Iterator[Callable[[], NativeWeight]]:
    """kept(): stores a weight that stays as its file has it. The file lies on the first node,
    as one that was read there before."""
    path, shape = tmp_path / "rows", (4096, 512)
    with running_on(next(iter(machine.threads.values()))):
        np.arange(4096 * 512, dtype=np.float32).tofile(path)
    engine = Engine(placement=placement({"mode": "distribute"}, read()))
    tensor = Tensor(shape, F32, Role.WEIGHT, "w")
    rows = np.memmap(path, np.float32, "r", shape=shape)
    yield lambda: NativeMemory(engine, {"w"}).store(tensor, rows)
    engine.close()


def test_rows_of_a_cached_file_move_to_the_nodes_that_read_them(machine, native, kept):
    weight, nodes = kept(), len(machine.nodes)

    assert [s.number for s in weight.segments] == list(machine.threads)
    for segment in weight.segments:
        lies = where(native, segment.memory.ctypes.data, segment.nbytes, nodes)
        assert lies.get(segment.number, 0) >= 0.99 * sum(lies.values())
    assert np.array_equal(weight.raw.reshape(-1), np.arange(weight.raw.size, dtype=np.float32))


def test_keys_and_values_of_a_head_lie_on_the_node_that_attends_to_it(machine, native):
    with loaded(STORIES, "distribute") as runner:
        runner.forward(Sequence(), prompt(STORIES))
        slots = [p.graph.slots.values() for p in umbel_numa.opened().programs.values()]
        caches = {s.buffer for each in slots for s in each if isinstance(s.buffer, StateBuffer)}
        right = touched = 0
        for number, address, nbytes in (area for cache in caches for area in cache.areas()):
            pages = where(native, address, nbytes, len(machine.nodes))
            right += pages.get(number, 0)
            touched += sum(pages.values()) - pages.get(-1, 0)

    layers, heads = 5, 4
    assert len(caches) == 2 * layers
    assert touched >= len(caches) * heads
    assert right >= 0.99 * touched


@pytest.mark.parametrize("on", [True, False])
def test_that_the_kernel_moves_pages_too_is_told_in_one_line(caplog, on):
    before = BALANCING.read_text()
    BALANCING.write_text("1" if on else "0")
    try:
        with loaded(DENSE, "auto"):
            pass
    finally:
        BALANCING.write_text(before)

    assert sum("numa_balancing" in record.getMessage() for record in caplog.records) == on


@pytest.mark.parametrize("calls", [NUMA_CALLS, MBIND], ids=["all", "mbind"])
def test_where_memory_cannot_be_placed_one_line_says_so(caplog, calls):
    wanted = expected(DENSE)

    def run() -> tuple[bool, list[str]]:
        refuse(calls)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "umbel"):
            same = logits(DENSE, "auto") == wanted
        return same, [record.getMessage() for record in caplog.records]

    same, lines = in_child(run)
    assert same
    assert len(lines) == 1
    assert "memory cannot be bound to a NUMA node" in lines[0]


def test_where_pages_cannot_move_one_line_says_so(caplog, kept):
    def run() -> tuple[bool, list[str], str]:
        refuse(MOVE_PAGES)
        caplog.clear()
        weight = kept()
        told = [record.getMessage() for record in caplog.records]
        return weight.engine.resident() == [], told, weight.engine.bound

    nowhere, lines, bound = in_child(run)
    assert nowhere
    assert len(lines) == 1
    assert "memory cannot be moved to a NUMA node" in lines[0]
    assert bound == "not bound: Operation not permitted"
