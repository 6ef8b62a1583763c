"""What is decided for each model that an engine meets, and what has no effect on it."""

from __future__ import annotations

import gc
import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import umbel
import umbel_numa
from umbel import gguf
from umbel.tools.gguf_file import encode, header, padding
from umbel_numa import tuned
from umbel_numa.cut import COPIES, ROWS
from umbel_numa.engine import Engine
from umbel_numa.placement import Placement
from umbel_numa.topology import read

Nodes = Callable[..., None]
IDS = list(range(3, 20))
FEW, LOOSE = "fewer experts (6) than nodes (7)", "what is not packed goes by rows"


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """rooms(n, memory=): each node has n bytes free, and the process may have `memory`."""

    def choose(free: int, memory: int = 1 << 50) -> None:
        monkeypatch.setattr("umbel_numa.engine.available", lambda _: free)
        monkeypatch.setattr("umbel_numa.engine.machine_memory", lambda: (memory, memory))

    return choose


def split(source: Path, folder: Path, count: int) -> list[Path]:
    """The parts of a model, its tensors dealt over them in turn."""
    paths = [folder / f"m-{n + 1:05}-of-{count:05}.gguf" for n in range(count)]
    with gguf.open(source) as file:
        values = {key: file.raw_value(key) for key in file.metadata}
        infos = list(file.tensors.values())
        for n, path in enumerate(paths):
            numbers = {"no": n, "count": count, "tensors.count": len(infos)}
            told = {f"split.{key}": encode(number) for key, number in numbers.items()}
            own = [(t.name, t.shape, t.dtype) for t in infos[n::count]]
            arrays = [file.array(t.name) for t in infos[n::count]]
            data = b"".join(a.tobytes() + padding(a.nbytes, file.alignment) for a in arrays)
            more = {} if n else values
            path.write_bytes(header({**more, **told}, own, file.alignment) + data)
    return paths


def logits(path: Path) -> np.ndarray:
    with umbel.load(path, "numa", ctx=32) as model, model.open() as session:
        return session.logits(IDS)


def engine(nodes: int = 1, **more: Any) -> Engine:
    where = Placement((-1,) * nodes, tuple(range(nodes)), (0,) * nodes)
    return Engine(placement=where, **more)


def test_a_split_model_is_one(
    on_nodes: Nodes,
    mixture: Path,
    tmp_path: Path,
    rooms: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its copies, its threads and its experts are those of all parts together."""
    on_nodes(1)
    expected = logits(mixture)
    parts = split(mixture, tmp_path, 3)
    size = sum(path.stat().st_size for path in parts)
    rooms(size)
    tuned.Records.of(read()).remember(size, (5, 6))
    for mode, told in (("mirror", "weights are distributed"), ("auto", "dealt by their use")):
        on_nodes(2, mode=mode, experts="whole", chosen=False)
        caplog.clear()
        with umbel.load(parts[1], "numa", ctx=32) as model:
            numa = umbel_numa.opened()
            assert (numa.met.nbytes, numa.met.copies) == (size, False)
            assert (numa.placement.decode, numa.placement.prefill) == (5, 6)
            stacks = {w for w in numa.weights if len(w.tensor.shape) == 3}
            skewed = {w.tensor.name: [90, *[1] * 5] for w in stacks}
            assert set(numa.met.use) == (set(skewed) if mode == "auto" else set())
            umbel_numa.use.remember(numa, skewed)
            with model.open() as session:
                np.testing.assert_array_equal(session.logits(IDS), expected)
        assert caplog.text.count(told) == 1
        assert caplog.text.count("as `umbel numa tune` found them") == 1


def test_each_model_is_asked_whether_copies_fit(
    on_nodes: Nodes,
    mixture: Path,
    rooms: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And keeps what was decided for it, whatever was met since."""
    on_nodes(2, mode="mirror")
    rooms(1 << 40)
    with umbel.load(mixture, "numa", ctx=32):
        numa = umbel_numa.opened()
        first = set(numa.weights)
        rooms(1000)
        with umbel.load(mixture, "numa", ctx=32):
            other = set(numa.weights) - first
            for weights, kind in ((first, COPIES), (other, ROWS)):
                assert {w.struct["split"][0] for w in weights if w.struct is not None} == {kind}
                assert {numa.cut(1, 8, w).split for w in weights if w.file} == {kind}
    assert caplog.text.count("takes up to 1 MB more") == 1
    assert caplog.text.count("distributed: a copy takes 1 MB, and a node has 0 MB free") == 1


def test_copies_want_the_memory_of_the_container(
    on_nodes: Nodes, mixture: Path, rooms: Callable[..., None]
) -> None:
    size = mixture.stat().st_size
    for memory, copies in ((2 * size, False), (3 * size, True), (0, True)):  # 0: nobody tells
        on_nodes(2, mode="mirror")
        rooms(1 << 40, memory)
        with umbel.load(mixture, "numa", ctx=8):
            assert umbel_numa.opened().met.copies == copies


def test_threads_are_those_of_the_largest_model(caplog: pytest.LogCaptureFixture) -> None:
    where = Placement((-1,) * 4, (0,) * 4, decode=3, prefill=4, chosen=False)
    numa = Engine(placement=where, tuned={1 << 20: (1, 2), 4096: (2, 2)}.get)
    large, small, unknown = (mmap.mmap(-1, size) for size in (1 << 20, 4096, 8192))
    try:
        for file, counts in ((small, (2, 2)), (large, (1, 2)), (unknown, (1, 2))):
            numa.meet(file)
            assert (numa.placement.decode, numa.placement.prefill) == counts
        del file, large, unknown
        gc.collect()
        numa.meet(mmap.mmap(-1, 8192))
        assert (numa.placement.decode, numa.placement.prefill) == (3, 4)
    finally:
        numa.close()
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["threads as `umbel numa tune` found them"] * 2 + ["threads as by default"]


@pytest.mark.parametrize(
    ("nodes", "more", "precise", "told"),
    [
        (2, {"experts": "whole"}, False, []),
        (7, {"experts": "whole"}, False, [f"6 of 6 weights: {FEW}"]),
        (2, {"experts": "whole"}, True, [f"2 of 6 weights: {LOOSE}"]),
        (7, {"experts": "whole"}, True, [f"2 of 6 weights: {LOOSE}", f"4 of 6 weights: {FEW}"]),
        (2, {"experts": "whole", "mode": "mirror"}, False, ["6 of 6 weights: each node has a"]),
        (2, {"mode": "mirror"}, False, []),
    ],
)
def test_experts_that_are_not_dealt_whole(
    on_nodes: Nodes,
    mixture: Path,
    rooms: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    nodes: int,
    more: dict[str, str],
    precise: bool,
    told: list[str],
) -> None:
    """One line of each model for each reason says so, when it runs for the first time."""
    rooms(1 << 40)
    on_nodes(nodes, **more)
    options = {"numa": {"precise": precise}}
    with (
        caplog.at_level(logging.WARNING, "umbel"),
        umbel.load(mixture, "numa", ctx=32, options=options) as model,
        model.open() as session,
    ):
        session.logits(IDS)
        session.logits(IDS[:3])
    lines = [r.getMessage() for r in caplog.records if "has no effect" in r.getMessage()]
    assert len(lines) == len(told)
    for why in told:
        assert sum(f"numa.experts=whole has no effect on {why}" in line for line in lines) == 1


def test_options_that_a_model_does_not_heed(
    on_nodes: Nodes,
    oracles: Path,
    rooms: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model without experts, all of whose weights stay as the file has them."""
    monkeypatch.setattr("umbel_numa.weights._LARGE", 1)
    rooms(1 << 40)
    on_nodes(2, experts="whole", mode="mirror")
    logits(oracles / "stories260K.gguf")
    lines = [r.getMessage() for r in caplog.records if "has no effect" in r.getMessage()]
    assert [line.partition(" has no effect")[0] for line in lines] == [
        "numa.mode=mirror",
        "numa.experts=whole",
    ]
    assert lines[0].endswith("on 1 MB of weights: they are not packed, and distributed")
    assert lines[1].endswith("no weight is of experts")
