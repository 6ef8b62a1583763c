"""What fails is named, tried again where that may help, and leaves sequences as they were."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import pytest
import umbel
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, UmbelError
from umbel_ane import profile
from umbel_ane.drivers.simulator import clock
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


def test_a_chip_with_one_input_a_program_leaves_all_to_the_host(load, monkeypatch, caplog):
    """With a line that says so, or an error where fallbacks are refused."""
    wanted = load("llama", device="host").logits([5, 6, 7])
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", "maderix")
    assert np.array_equal(load("llama").logits([5, 6, 7]), wanted)
    assert "ane:0 does not run everything" in caplog.text
    with pytest.raises(UmbelError):
        load("llama", strict=True)


def test_a_cache_that_cannot_be_written_is_named(load, monkeypatch, tmp_path) -> None:
    blocked = tmp_path / "umbel"
    blocked.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DeviceError, match="cannot be compiled") as caught:
        load("llama")
    assert "cannot be kept" in str(caught.value.got)


def test_each_model_that_overflows_is_told_of(load, oracles, tmp_path, caplog) -> None:
    """Also the second one in a process."""
    for number in (1, 2):
        file = tmp_path / f"{number}.gguf"
        shutil.copy(oracles / "llama.gguf", file)
        large = gguf.GGUFReader(file, "r+")
        for tensor in large.tensors:
            if "ffn_up" in tensor.name:
                tensor.data[...] *= 1e5 / number
        large.data.flush()
        load("qwen2")  # the device stays open
        with umbel.load(file, device="ane:0", ctx=64) as model:
            model.logits([3, 9, 4])
        assert caplog.text.count("gave values that are not finite") == number


def test_surfaces_go_with_the_model(load, health) -> None:
    with load("llama") as model:
        model.logits([5, 6, 7])
        assert health()["surface_bytes"] > 0
    assert health()["surface_bytes"] == 0
    assert health()["canaries"] == "0 passed, 0 failed"


def test_a_step_of_too_many_programs_is_refused_before_a_compile(load, monkeypatch) -> None:
    few = attrs.evolve(profile.load("orion-m4-macos15"), compile_limit=2, max_program_ops=40)
    monkeypatch.setattr(profile, "load", lambda name="": few)
    with pytest.raises(DeviceError, match="more programs than a process may compile") as caught:
        load("llama", ubatch=16)
    assert "at most 2" in str(caught.value)
    assert clock.PROCESS.compiles == 0


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


BREAKS = ("no text", "half a text", "half a list", "another list", "no weights", "zeros")


@pytest.mark.parametrize("how", BREAKS)
def test_what_cannot_be_used_is_compiled_anew(load, health, tmp_path, monkeypatch, caplog, how):
    """Entries of the system's cache that another system, or an end in the middle, has left."""
    from umbel import plugins

    given = {"ctx": 64, "parallel": 1}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load("llama", **given).generate([5, 6, 7], **GREEDY).read()
    plugins.get().close()
    assert sum(_spoil(path, how) for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*"))
    model = load("llama", **given)
    assert model.generate([5, 6, 7], **GREEDY).read() == first
    assert "so it is compiled anew" in caplog.text
    compiled = health()["compiles"]
    assert str(health()["canaries"]).endswith(" 0 failed")
    plugins.get().close()
    caplog.clear()
    assert load("llama", **given).generate([5, 6, 7], **GREEDY).read() == first
    assert health()["compiles"] == compiled
    assert "compiled anew" not in caplog.text


def _spoil(path: Path, how: str) -> bool:
    """One file of the simulator's cache, if it is one of these."""
    kind = {"no text": "model.mil", "half a text": "model.mil", "half a list": "files.json"}
    kind["another list"] = "files.json"
    wanted = path.name == kind[how] if how in kind else len(path.name) == 64
    if not wanted or not path.is_file():
        return False
    if how.startswith("no"):
        path.unlink()
    elif how == "another list":
        path.write_text("[]")
    else:
        data = path.read_bytes()
        path.write_bytes(bytes(len(data)) if how == "zeros" else data[: len(data) // 2])
    return True
