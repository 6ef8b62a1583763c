"""How often experts are chosen: counted, remembered, and what is made of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import umbel
import umbel_numa
from umbel import cli
from umbel_numa import tuned, use

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"
Nodes = Callable[..., None]


def test_what_is_counted(on_nodes: Nodes, mixture: Path) -> None:
    """Each token of a step has as many as the model says, in every layer; and then no more."""
    on_nodes(2)
    with umbel.load(mixture, "numa", ctx=32) as model:
        engine = umbel_numa.opened()
        found = use.counted(model, engine, 9)
        metadata = model.file.metadata
        model.generate("a", max_tokens=1).read()
        assert use.counted(model, engine, 9) == found
    experts, used = (metadata[f"qwen3moe.expert_{n}count"] for n in ("", "used_"))
    layers = metadata["qwen3moe.block_count"]
    assert len(found) == 3 * layers
    assert {len(chosen) for chosen in found.values()} == {experts}
    assert {sum(chosen) for chosen in found.values()} == {9 * used}


@pytest.mark.parametrize(("p", "n"), [(1, 1), (8, 1)])
def test_counting_has_room(on_nodes: Nodes, mixture: Path, p: int, n: int) -> None:
    """In the context that the tokens to measure with need, and not a token more."""
    on_nodes(2)
    tuned.save("experts", {"changed by hand": 3})
    assert cli.main(["numa", "tune", str(mixture), "-p", str(p), "-n", str(n)]) == 0
    (found,) = (v for v in tuned.load()["experts"].values() if v != 3)
    with umbel.gguf.open(mixture) as file:
        used = file.metadata["qwen3moe.expert_used_count"]
    assert {sum(chosen) for chosen in found.values()} == {p * used}


def test_a_model_without_experts(on_nodes: Nodes) -> None:
    on_nodes(2)
    with umbel.load(ORACLES / "stories260K.gguf", "numa", ctx=32) as model:
        assert use.counted(model, umbel_numa.opened(), 9) == {}


def test_tuned_experts_are_dealt_by_use(
    on_nodes: Nodes, mixture: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What `tune` counted decides where whole experts lie, and no logit."""
    on_nodes(1)
    ids = list(range(3, 20))
    with umbel.load(mixture, "numa", ctx=64) as model, model.open() as session:
        expected = session.logits(ids)
    on_nodes(2)
    assert cli.main(["numa", "tune", str(mixture), "-p", "8", "-n", "2"]) == 0
    ((name, found),) = json.loads(tuned.path().read_text())["experts"].items()
    skewed = {w: [90, *[1] * (len(chosen) - 1)] for w, chosen in found.items()}
    tuned.save("experts", {name: skewed})

    for experts, told in (("whole", True), ("rows", False)):
        on_nodes(2, experts=experts)
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "umbel"),
            umbel.load(mixture, "numa", ctx=64) as model,
            model.open() as session,
        ):
            np.testing.assert_array_equal(session.logits(ids), expected)
            packed = [w for w in umbel_numa.opened().weights if w.tensor.name in found]
            firsts = {tuple(w.struct["first"][0, :3]) for w in packed if w.struct is not None}
        assert ("dealt by their use" in caplog.text) == told
        assert (firsts == {(0, 1, len(next(iter(found.values()))))}) == told


def test_what_was_changed_by_hand(on_nodes: Nodes, mixture: Path) -> None:
    on_nodes(2, experts="whole")
    assert not use.forget()
    with umbel.load(mixture, "numa", ctx=8):
        (file,) = {w.file for w in umbel_numa.opened().weights if w.file is not None}
        name = use._identity(file)
        for value in (3, {name: 3}, {name: {"w": "x", "v": [1, "2"], "u": [-1]}}):
            known = tuned.load() | {"experts": value}
            tuned.path().parent.mkdir(exist_ok=True)
            tuned.path().write_text(json.dumps(known))
            assert use.recall(file) == {}
        tuned.save("experts", {name: {"w": [1, 2], "v": 3}})
        assert use.recall(file) == {"w": [1, 2]}
        tuned.save("experts", {name: 3})
        (some, *_) = (w.tensor.name for w in umbel_numa.opened().weights if w.file is not None)
        use.remember(umbel_numa.opened(), {some: [4]})
        assert use.recall(file) == {some: [4]}
    assert use.forget()
    assert not use.forget()
