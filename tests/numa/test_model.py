"""A model gives the same bits however the machine is shared out, and lies where it should."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import umbel_numa
from inside import NUMA_CALLS, in_child, refuse, running_on, where
from machines import Machine
from umbel import gguf, loading, plugins
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel_numa.state import StateBuffer
from umbel_numa.topology import MODES

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"
STORIES, DENSE, EXPERTS = "stories260K", "llama-e256-Q8_0", "qwen3moe"
BALANCING = Path("/proc/sys/kernel/numa_balancing")
PROMPT, MORE = list(range(1, 9)), (9, 10, 11)


@contextlib.contextmanager
def loaded(name: str, mode: str, threads: int | None = None) -> Iterator[Runner]:
    """A model on a device that is opened for it; most have no vocabulary."""
    file = gguf.open(ORACLES / f"{name}.gguf")
    try:
        definition = loading.define(file)
        options = {"numa": {"mode": mode}}
        targets = loading.targets("numa", options, threads, strict=True)
        settings = Settings(ctx=loading.context(definition, None, targets), strict=True)
        runner = Runner(definition, targets, settings)
        try:
            yield runner
        finally:
            runner.close()
    finally:
        plugins.get().close()
        file.close()


def logits(name: str, mode: str, threads: int | None = None) -> bytes:
    """Of a prompt, and of tokens one by one after it."""
    with loaded(name, mode, threads) as runner:
        text = Sequence()
        rows = [runner.forward(text, PROMPT, every=True)]
        rows += [runner.decode([text], [token]) for token in MORE]
    return np.concatenate(rows).tobytes()


@cache
def expected(name: str) -> bytes:
    """On one thread, which is pinned to nothing."""
    return logits(name, "off", threads=1)


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
        runner.forward(Sequence(), PROMPT)
        segments = [s for s in umbel_numa.opened().segments if s.number >= 0]
        lies = [where(native, s.memory.ctypes.data, s.nbytes, nodes) for s in segments]
        resident, misplaced = umbel_numa.opened().resident(), umbel_numa.opened().misplaced()

    pages = sum(sum(found.values()) for found in lies)
    right = sum(found.get(s.number, 0) for s, found in zip(segments, lies, strict=True))
    assert {s.number for s in segments} == set(machine.threads)
    assert right >= 0.99 * pages
    assert misplaced == (pages - right) * page
    whole = runner.definition.file.path.stat().st_size * (nodes if mode == "mirror" else 1)
    assert sum(resident) == pytest.approx(whole, rel=0.5)
    assert min(resident) > 0.5 * max(resident)


def test_keys_and_values_of_a_head_lie_on_the_node_that_attends_to_it(machine, native):
    with loaded(STORIES, "distribute") as runner:
        runner.forward(Sequence(), PROMPT)
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


def test_where_memory_cannot_be_placed_one_line_says_so(caplog):
    wanted = expected(DENSE)

    def run() -> tuple[bool, list[str]]:
        refuse(NUMA_CALLS)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "umbel"):
            same = logits(DENSE, "auto") == wanted
        return same, [record.getMessage() for record in caplog.records]

    same, lines = in_child(run)
    assert same
    assert sum("memory" in line and "node" in line for line in lines) == 1, lines
