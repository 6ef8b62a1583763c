"""Weights that change: each rung of the ladder, where it works and where it does not."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from umbel_ane import profile
from umbel_ane.runtime.ladder import Rung, update

TENSOR = "blk.0.ffn_down.weight"


@pytest.fixture
def rereads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that is strict, but heeds rewritten files at a reload."""
    plain = profile.load
    made = attrs.evolve(plain("orion-m4-macos15"), reload="reread")
    monkeypatch.setattr(profile, "load", lambda name="": made)


class Stage:
    """A model and its decode split."""

    def __init__(self, load: Any, **options: str) -> None:
        from umbel import plugins

        self.model = load("llama", ubatch=1, options={"ane": options})
        assert plugins.get().find("ane:0")
        import umbel_ane

        self.opened = umbel_ane._open["ane:0"]
        self.splits = self.opened.splits
        steps = self.model.runner.plan(self.model.runner.usual[0]).steps
        (self.step,) = [step for step in steps if step.target.name == "ane:0"]
        slots = {t.name: s for t, s in self.step.graph.slots.items()}
        self.weight = slots[TENSOR].buffer
        self.logits()  # everything is loaded

    def change(self, factor: float) -> None:
        values = self.weight.memory.view(np.float16)
        self.weight.write(0, (values * factor).astype(np.float16))

    def update(self) -> Rung:
        with self.step.target.lock:
            return update(self.splits, self.step.graph)

    def logits(self) -> np.ndarray:
        with self.model.open() as session:
            return np.array([session.feed([i]) for i in (1, 5, 9)])

    def anew(self) -> np.ndarray:
        """With programs that were compiled from what the weights are now."""
        with self.step.target.lock:
            self.splits.clear()
        return self.logits()


def _climbed(stage: Stage, rung: Rung) -> None:
    before = stage.logits()
    stage.change(-2)
    assert stage.update() is rung
    after = stage.logits()
    assert np.abs(after - before).max() > 0.1
    assert np.allclose(after, stage.anew(), rtol=0, atol=2e-2)


@pytest.mark.parametrize("how", ["write", "map", "copy_from"])
@pytest.mark.parametrize("reload", ["reread", "snapshot"])
def test_a_written_weight_is_heeded_at_the_next_step(load, request, how, reload) -> None:
    """Nobody need say so, whichever call of the contract wrote it."""
    if reload == "reread":
        request.getfixturevalue("rereads")
    stage = Stage(load)
    before = stage.logits()
    values = stage.weight.memory.view(np.float16) * np.float16(-2)
    if how == "write":
        stage.weight.write(0, values)
    elif how == "map":
        stage.weight.map("w")[:] = values.view(np.uint8)
    else:
        other = stage.opened.memory.allocate(values.nbytes, "state")
        other.write(0, values)
        assert stage.weight.copy_from(0, other, 0, values.nbytes)
    after = stage.logits()
    assert np.abs(after - before).max() > 0.1
    assert np.allclose(after, stage.anew(), rtol=0, atol=2e-2)
    compiles = stage.opened.driver.compiles
    assert np.allclose(stage.logits(), after, rtol=0, atol=2e-2)
    assert stage.opened.driver.compiles == compiles


def test_nothing_changed(load) -> None:
    stage = Stage(load)
    assert stage.update() is Rung.SAME


def test_a_reload_that_rereads(load, rereads) -> None:
    """The first rung: no compile."""
    stage = Stage(load)
    before = stage.opened.driver.compiles
    stage.change(0.5)
    assert stage.update() is Rung.REWRITTEN
    assert stage.opened.driver.compiles == before
    _climbed(stage, Rung.REWRITTEN)


def test_a_change_that_hardly_shows(load) -> None:
    """Stale weights are found where results are nearly the same: they are bit for bit."""
    stage = Stage(load)
    stage.change(1.002)
    assert stage.update() is Rung.HELD


def test_weights_as_inputs(load) -> None:
    """The second, where a reload serves the old program; from then on nothing is compiled."""
    stage = Stage(load)
    _climbed(stage, Rung.HELD)
    stage.logits()
    stage.change(-1)
    assert stage.update() is Rung.HELD
    before, first = stage.opened.driver.compiles, stage.logits()
    stage.change(-1)
    assert stage.update() is Rung.HELD
    assert np.abs(stage.logits() - first).max() > 0.1
    assert stage.opened.driver.compiles == before


def test_compiled_anew(load, monkeypatch, caplog) -> None:
    """The third, where programs with weights as inputs do not work."""
    stage = Stage(load)
    plain = stage.splits.compile

    def failing(graph, held):
        if held:
            from umbel_ane.drivers import AneError

            msg = "InvalidMILProgram"
            raise AneError(msg)
        return plain(graph, held)

    stage.splits.compile = failing
    _climbed(stage, Rung.COMPILED)
    assert "weights cannot be inputs" in caplog.text
