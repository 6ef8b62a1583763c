"""What a user is promised of compiles and canaries.

That a second start compiles nothing is in runtime/test_models.py,
test_a_second_start_compiles_nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from large import Size, write_gpt2
from planned import planning, steps
from umbel_ane.drivers.simulator import Simulator
from umbel_ane.opened import Opened

STRICT = "orion-m4-macos15"


def _run(model: Any, **how: Any) -> str:
    text: str = model.generate("Once upon a time", max_tokens=4, temperature=0, **how).read()
    return text


def _told(opened: Opened) -> tuple[int, int, str]:
    """Programs, dispatches, and what became of the canaries."""
    status = opened.status()
    programs, dispatches = status["programs"], status["dispatches"]
    assert isinstance(programs, int)
    assert isinstance(dispatches, int)
    return programs, dispatches, str(status["canaries"])


def test_an_adapter_is_swapped_without_a_compile(oracles: Path) -> None:
    """Also one with other values: adapters are inputs of programs."""
    adapter = oracles / "llama-lora.gguf"
    with planning(oracles / "llama.gguf", STRICT, ctx=64, adapters=adapter) as (model, opened):
        first = _run(model)
        compiles = opened.driver.compiles
        assert compiles > 0
        model.unload_adapter("llama-lora")
        model.load_adapter(adapter, "again")
        assert _run(model, adapters={"again": 1.0}) == first
        assert opened.driver.compiles == compiles
        _run(model, adapters={"again": -0.5})
        assert opened.driver.compiles == compiles


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_every_program_has_a_verdict(oracles: Path, name: str) -> None:
    """And took part: dispatches count those of steps alone."""
    with planning(oracles / f"{name}.gguf", STRICT, ctx=64) as (model, opened):
        _run(model)
        programs, dispatches, canaries = _told(opened)
        assert canaries == f"{programs} passed, 0 failed"
        assert set(opened.programs.verdicts) == set(opened.programs.loaded)
        assert dispatches >= programs > 0


def test_dispatches_of_a_token(tmp_path: Path) -> None:
    """12 layers as GPT-2 124M has, narrow: the simulator counts, and the status says the same
    number. Orion takes 24."""
    path = tmp_path / "gpt2.gguf"
    write_gpt2(path, Size(12, 48, 96, 12, 12, 512, 128))
    with planning(path, STRICT, ctx=128) as (model, opened), model.open() as session:
        assert isinstance(opened.driver, Simulator)
        session.feed([1, 5, 9])
        session.feed([7])  # the decode program is there from here on
        counts, before = opened.driver.clock.counts, _told(opened)[1]
        first, tokens = counts["evaluate"], 5
        for i in range(tokens):
            session.feed([i])
        each = (counts["evaluate"] - first) / tokens
        assert 0 < each <= 12
        assert _told(opened)[1] - before == each * tokens


def test_without_canaries_nothing_is_claimed(oracles: Path) -> None:
    options = {"canary": "off"}
    with planning(oracles / "gpt2.gguf", STRICT, options, ctx=64) as (model, opened):
        _run(model)
        assert _told(opened)[2] == "0 passed, 0 failed"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_plan_is_what_is_compiled(oracles: Path, name: str) -> None:
    """No program runs that `umbel ane explain` did not tell of."""
    with planning(oracles / f"{name}.gguf", STRICT, ctx=64) as (model, opened):
        planned = {p.key for step in steps(model, opened) for p in step.programs}
        assert opened.driver.compiles == 0 or opened.programs.loaded == {}
        _run(model)
        loaded = {each.program.key for each in opened.programs.loaded.values()}
        assert loaded
        assert loaded <= planned
