"""What fails is named, tried again where that may help, and leaves sequences as they were."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError
from umbel_ane.runtime.steps import Splits

STORY = "Once upon a time"
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0}


@pytest.fixture
def faulty(load, monkeypatch):
    """faulty(fault): a story model whose device has it; with an own cache of programs where
    compiling is to fail."""

    def of(fault: str, **how: Any):
        monkeypatch.setenv("UMBEL_ANE_FAULT", fault)
        return load("stories260K", ubatch=16, **how)

    return of


@pytest.fixture
def fresh(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("doing", ["compile", "load"])
def test_a_program_that_cannot_be_made(faulty, fresh, doing) -> None:
    """Program and nodes are named; it is not tried again, and nothing stays behind."""
    with pytest.raises(
        DeviceError, match=r"program 1 of 1 cannot be (compil|load)ed"
    ) as caught:
        faulty(doing)
    assert "token_embd" in str(caught.value.where) or "rms_norm" in str(caught.value.where)
    import umbel_ane

    opened = umbel_ane._open["ane:0"]
    assert opened.programs.loaded == {}
    assert opened.pool.taken == 0


def test_an_evaluation_that_fails_once(faulty, load, caplog) -> None:
    """The program is loaded again; the text is the same."""
    wanted = load("stories260K", device="host").generate(STORY, **GREEDY).read()
    model = faulty("evaluate:6")
    assert model.generate(STORY, **GREEDY).read() == wanted
    assert caplog.text.count("is loaded again") == 1


def test_an_evaluation_that_keeps_failing(faulty, health) -> None:
    """It is disabled and the sequence is as it was; later steps fail at once, alike."""
    model = faulty("evaluate:6+")
    with model.open() as session:
        logits = session.feed(STORY)
        tokens = session.tokens
        errors, due = [], [int(logits.argmax())]
        while not errors:
            try:
                session.feed(due)
            except DeviceError as error:
                errors.append(str(error))
        held = len(session)
        with pytest.raises(DeviceError, match="is not used any more") as caught:
            session.feed(due)
        errors.append(str(caught.value))
        assert len(session) == held >= len(tokens)
        assert errors[0] == errors[1]
        assert "0x1d" in errors[0]
    assert "is not used any more" in health()["failed"]


def test_a_canary_that_does_not_agree(faulty, health) -> None:
    with pytest.raises(DeviceError, match="computes it wrongly") as caught:
        faulty("canary")
    assert "where it should be" in caught.value.got
    assert "ane.canary=off" in caught.value.do


def test_without_canaries(faulty, load, health) -> None:
    """They can be switched off: what is wrong then is wrong, unseen."""
    wanted = load("stories260K", device="host").generate(STORY, **GREEDY).read()
    model = faulty("canary:2", options={"ane": {"canary": "off"}})
    assert health()["canaries"] == "0 passed, 0 failed"
    assert model.generate(STORY, **GREEDY).read() != wanted


def test_surfaces_that_cannot_be_made(faulty) -> None:
    with pytest.raises(OutOfMemoryError, match="no room for a surface"):
        faulty("surface:4+")


def test_check_names_the_node(faulty) -> None:
    """Also of many: nodes that are alike share programs, so that the compiles suffice."""
    model = faulty("nan:60", check=True, options={"ane": {"canary": "off"}})
    with pytest.raises(DeviceError, match="not finite") as caught:
        model.generate(STORY, **GREEDY).read()
    assert " on ane:0" in str(caught.value)


def test_check_computes_the_same(load, health) -> None:
    wanted = load("stories260K", device="host").generate(STORY, **GREEDY).read()
    assert load("stories260K", ubatch=16, check=True).generate(STORY, **GREEDY).read() == wanted
    assert int(health()["compiles"].split()[0]) <= 119


def test_a_cancelled_step(load, monkeypatch) -> None:
    """It stops between programs; the sequence goes on from where it was."""
    model = load("stories260K", ubatch=16)
    wanted = model.generate(STORY, **GREEDY).read()
    with model.open() as session:
        first = session.feed(STORY)
        before, runner, run = len(session), model.runner, Splits.run
        due = [int(first.argmax())]

        def asked(splits: Splits, graph: Any) -> None:
            runner.stop.ask()
            run(splits, graph)

        monkeypatch.setattr(Splits, "run", asked)
        with pytest.raises(CancelledError):
            model.engine.call(lambda: runner.forward(session._sequence, due))
        monkeypatch.setattr(Splits, "run", run)
        runner.stop.asked = False
        assert len(session) == before
        assert np.array_equal(session.feed(due), _second(model, due))
    assert model.generate(STORY, **GREEDY).read() == wanted


def _second(model: Any, due: list[int]) -> np.ndarray:
    with model.open() as session:
        session.feed(STORY)
        return np.array(session.feed(due))


def test_status_from_other_threads(load, health) -> None:
    """At any time, while programs come and go."""
    model = load("stories260K", ubatch=16)
    done, failures = threading.Event(), []

    def ask() -> None:
        while not done.wait(0.002):
            try:
                health()
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    model.generate(STORY, **GREEDY).read()
    done.set()
    thread.join()
    assert failures == []
    told = health()
    assert told["driver"] == "simulator"
    assert told["simulated"] is True
    assert told["dispatches"] >= 24
    assert told["surface_bytes"] > 0
