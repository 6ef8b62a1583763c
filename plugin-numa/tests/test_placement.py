"""Weights cut over pretended nodes, in memory of their own: the same bits in any case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from several_nodes import pretended
from umbel.gguf.types import BY_NAME
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel_kit.conformance.inputs import random_blocks
from umbel_numa.cut import COPIES, MATRICES, ROWS, cut
from umbel_numa.engine import Engine
from umbel_numa.library import variants
from umbel_numa.memory import NativeMemory
from umbel_numa.pages import Binder, whole_pages
from umbel_numa.placement import available, balancing

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
PACKED += ["iq4_nl", "iq4_xs", "mxfp4", "f16", "bf16"]
RAW = ["f32", "iq2_xs", "iq3_s"]
NODES = (1, 2, 3, 4)


def engine(nodes: int, each: int = 1, **more: Any) -> Engine:
    return Engine(placement=pretended(nodes, each, **more))


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, rng = BY_NAME[dtype], np.random.default_rng(5)
    if kind.numpy is not None:
        return rng.standard_normal(shape).astype(np.float32).astype(kind.numpy)
    if dtype == "bf16":
        return rng.standard_normal(shape).astype(np.float32).view(np.uint16)[..., 1::2].copy()
    return random_blocks(shape, kind, rng)


def run(numa: Engine, op: str, shape: Any, raw: Any, dtype: str, *given: Any) -> np.ndarray:
    """One operation with a weight."""
    build, memory = Builder(OPS), NativeMemory(numa, {"w"})
    kind = BY_NAME[dtype]
    w = build.leaf(Role.WEIGHT, "w", shape, kind)
    kinds = {"f": "f32", "i": "i32"}
    rest = [
        build.leaf(Role.INPUT, f"x{i}", x.shape, BY_NAME[kinds[x.dtype.kind]])
        for i, x in enumerate(given)
    ]
    node = getattr(build, op)(w, *rest)
    slots = {w: Slot(memory.store(Tensor(shape, kind, Role.WEIGHT, "w"), raw))}
    for t in (*rest, node):
        slots[t] = Slot(memory.allocate(t.nbytes, "compute"))
    for t, x in zip(rest, given, strict=True):
        slots[t].buffer.write(0, x)
    numa.compute(SplitGraph(1, (node,), (w, *rest), (node,), slots))
    return slots[node].buffer.read(0, node.nbytes)


def on_all(work: Callable[[Engine], np.ndarray], **more: Any) -> None:
    """The same bits on one node and on several, each with all, and with copies."""
    expected = None
    for nodes in NODES:
        for copies in (False, True):
            numa = engine(nodes, 2 if nodes == 2 else 1, **more)
            numa.met.copies = copies
            try:
                got = work(numa)
            finally:
                numa.close()
            expected = got if expected is None else expected
            np.testing.assert_array_equal(got, expected, f"{nodes} nodes, copies {copies}")


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("dtype", PACKED + RAW)
def test_products(dtype: str, tokens: int) -> None:
    width = 2 * BY_NAME[dtype].block if BY_NAME[dtype].block > 32 else 96
    raw = values(dtype, (75, width))
    x = np.random.default_rng(1).standard_normal((tokens, width)).astype(np.float32)
    on_all(lambda numa: run(numa, "mul_mat", (75, width), raw, dtype, x))


@pytest.mark.parametrize("dtype", PACKED)
def test_gathers(dtype: str) -> None:
    width = max(BY_NAME[dtype].block, 64)
    raw, ids = values(dtype, (75, width)), np.array([0, 74, 16, 15, 40], np.int32)
    on_all(lambda numa: run(numa, "get_rows", (75, width), raw, dtype, ids))


@pytest.mark.parametrize("experts", ["rows", "whole"])
@pytest.mark.parametrize("dtype", ["q4_0", "q6_k", "f32"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_experts(dtype: str, experts: str, tokens: int) -> None:
    width = max(BY_NAME[dtype].block, 64)
    shape, rng = (7, 40, width), np.random.default_rng(3)
    raw = values(dtype, shape)
    x = rng.standard_normal((tokens, 1, width)).astype(np.float32)
    ids = np.array([rng.permutation(7)[:3] for _ in range(tokens)], np.int32)
    work = lambda numa: run(numa, "mul_mat_id", shape, raw, dtype, x, ids)  # noqa: E731
    on_all(work, experts=experts)


@pytest.mark.parametrize("kernels", [name for name, runs in variants().items() if runs])
def test_kernels_of_all_instruction_sets(kernels: str) -> None:
    raw = values("q4_k", (50, 256))
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    results = []
    for nodes in (1, 3):
        numa = Engine(kernels=kernels, placement=pretended(nodes))
        results.append(run(numa, "mul_mat", (50, 256), raw, "q4_k", x))
        numa.close()
    np.testing.assert_array_equal(*results)


# how weights are cut


@pytest.mark.parametrize(
    ("shares", "count", "groups", "more", "expected"),
    [
        ((1,), 1, 5, {}, (ROWS, (0, 5), (5,))),
        ((1, 1), 1, 5, {}, (ROWS, (0, 2, 5), (2, 3))),
        ((1, 3), 2, 8, {}, (ROWS, (0, 2, 8), (4, 12))),
        ((1, 1, 1), 1, 2, {}, (ROWS, (0, 0, 1, 2), (0, 1, 1))),
        ((1, 1), 2, 8, {"copies": True}, (COPIES, (0, 0, 0), (16, 16))),
        ((1,), 2, 8, {"copies": True}, (ROWS, (0, 8), (16,))),
        ((1, 1), 5, 8, {"whole": True}, (MATRICES, (0, 2, 5), (16, 24))),
        ((1, 1), 1, 8, {"whole": True}, (ROWS, (0, 4, 8), (4, 4))),
        *(
            (
                (1, 1),
                5,
                8,
                {"whole": True, "use": use},
                (MATRICES, (0, n, 5), (8 * n, 40 - 8 * n)),
            )
            for use, n in (
                ((8, 1, 1, 1, 1), 1),
                ((1, 1, 1, 1, 8), 4),
                ((0, 0, 0, 0, 0), 2),
                ((9, 1), 2),
            )
        ),
        ((1, 3), 4, 1, {"whole": True, "use": (5, 5, 5, 5)}, (MATRICES, (0, 1, 4), (1, 3))),
        (
            (1, 1, 1),
            3,
            1,
            {"whole": True, "use": (9, 0, 0)},
            (MATRICES, (0, 0, 1, 3), (0, 1, 2)),
        ),
        ((1, 1), 5, 8, {"use": (8, 1, 1, 1, 1)}, (ROWS, (0, 4, 8), (20, 20))),
    ],
)
def test_cut(shares: Any, count: int, groups: int, more: Any, expected: Any) -> None:
    got = cut(shares, count, groups, **({"copies": False, "whole": False} | more))
    assert (got.split, got.first, got.held) == expected


def test_segments_lie_in_memory_of_their_own() -> None:
    numa = engine(3)
    memory = NativeMemory(numa, {"w"})
    shape, kind = (3 * 4096, 256), BY_NAME["q8_0"]
    weight = memory.store(Tensor(shape, kind, Role.WEIGHT, "w"), values("q8_0", shape))
    page = whole_pages(1)

    assert [s.node for s in weight.segments] == [0, 1, 2]
    assert all(s.memory.ctypes.data % page == 0 for s in weight.segments)
    assert sum(s.nbytes for s in weight.segments) == weight.nbytes
    assert numa.misplaced() == 0
    told = numa.resident()
    assert told == [] or (len(told) == 3 and weight.nbytes <= told[0])
    numa.close()


def test_rows_that_stay_mapped_are_cut_as_well(tmp_path: Path) -> None:
    """Each node's part follows on the one before; a small weight is left whole."""
    numa, kind = engine(2, 2), BY_NAME["f32"]
    memory = NativeMemory(numa, {"w"})
    for rows, parts in ((4096, 2), (8, 1)):
        path = tmp_path / str(rows)
        np.ones((rows, 128), np.float32).tofile(path)
        mapped = np.memmap(path, np.float32, "r", shape=(rows, 128))
        weight = memory.store(Tensor(mapped.shape, kind, Role.WEIGHT, "w"), mapped)
        starts = [s.memory.ctypes.data - weight.handle for s in weight.segments]
        assert len(starts) == parts
        assert [starts[0], weight.segments[-1].nbytes + starts[-1]] == [0, mapped.nbytes]
        assert all(s.nbytes == mapped.nbytes // parts for s in weight.segments)
    numa.close()


def test_experts_that_stay_mapped_are_cut_as_well() -> None:
    """Each node has the same rows of all of them, those that its threads compute, up to where
    the next page begins."""
    numa, kind, shape = engine(2, 2), BY_NAME["f32"], (3, 1000, 128)
    weight = NativeMemory(numa, {"w"}).store(
        Tensor(shape, kind, Role.WEIGHT, "w"), np.ones(shape, np.float32)
    )
    numa.close()
    row, page, size = 128 * 4, whole_pages(1), 3 * 1000 * 128 * 4
    starts = [e * 1000 + half for e in range(3) for half in (0, 31 * 16)]  # of 63 groups
    after = 0
    for segment, start, node in zip(weight.segments, starts, (0, 1) * 3, strict=True):
        at = segment.memory.ctypes.data
        assert at == weight.handle + after
        assert 0 <= after - start * row < page
        assert segment.node == node
        after += segment.nbytes
        assert (at + segment.nbytes) % page == 0 or after == size
    assert after == size


def test_memory_that_cannot_be_bound_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    binder = Binder()
    for _ in range(2):
        memory = binder.fresh(10_000, "weight", 1000)  # no kernel has so many nodes
        memory[:] = 1
    assert memory.nbytes == 10_000
    assert len(caplog.records) == 1
    assert "lies where it is touched first" in caplog.text
    assert not binder.move(memory, 0)


def test_weights_that_are_gone_are_not_counted() -> None:
    numa = engine(2)
    memory, raw = NativeMemory(numa, {"w"}), values("q8_0", (64, 64))
    weight = memory.store(Tensor((64, 64), BY_NAME["q8_0"], Role.WEIGHT, "w"), raw)
    assert len(numa.segments) == len(weight.segments) == 2
    del weight
    assert numa.segments == []
    numa.close()


def test_threads_of_steps() -> None:
    """A step of few rows waits for memory; each node computes in any case."""
    numa = engine(2, 4, decode=3, prefill=7)
    assert [numa.count(rows) for rows in (1, 16, 17, 512)] == [3, 3, 7, 7]
    assert (numa.shares(), numa.shares(7)) == ([2, 1], [4, 3])
    numa.set_counts(1, 99)
    assert (numa.count(1), numa.count(99)) == (2, 8)
    numa.close()


def test_rows_of_experts_are_not_those_of_the_step() -> None:
    """Each expert is read for a few of them: it is the tokens that tell a prompt."""
    rng = np.random.default_rng(3)
    raw = values("q4_0", (7, 40, 64))
    numa = engine(1, 4, decode=2, prefill=4)
    for tokens, threads in ((1, 2), (16, 2), (17, 4)):
        x = rng.standard_normal((tokens, 3, 64)).astype(np.float32)
        ids = np.array([rng.permutation(7)[:3] for _ in range(tokens)], np.int32)
        run(numa, "mul_mat_id", (7, 40, 64), raw, "q4_0", x, ids)
        assert numa.programs[1].threads == threads
        numa.forget(1)
    numa.close()


# what the system says


def test_available(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node/node1"
    folder.mkdir(parents=True)
    text = "Node 1 MemTotal: 900 kB\nNode 1 MemFree: 100 kB\nNode 1 Inactive(file): 20 kB\n"
    (folder / "meminfo").write_text(text)
    assert available(1, tmp_path) == 120 << 10
    assert available(0, tmp_path) == 0


@pytest.mark.parametrize(("text", "expected"), [("0\n", False), ("1\n", True), ("2\n", True)])
def test_balancing(tmp_path: Path, text: str, expected: bool) -> None:
    assert not balancing(tmp_path)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/numa_balancing").write_text(text)
    assert balancing(tmp_path) is expected
