"""The programs that the compiler writes for a model, without compiling one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import umbel
from umbel import plugins
from umbel.models import StepShape
from umbel_ane import explain
from umbel_ane.compiler.programs import Compiled
from umbel_ane.drivers.simulator.checks import Made
from umbel_ane.mil.parse import parse
from umbel_ane.opened import Opened


@contextmanager
def planning(
    path: Path, profile: str, options: dict[str, str] | None = None, **how: Any
) -> Iterator[tuple[umbel.Model, Opened]]:
    """A model on a simulated chip of its own, where nothing is compiled before it runs."""
    import umbel_ane

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMBEL_ANE_SIMULATOR", profile)
        found = plugins.Plugins(only="ane")
        patch.setattr(plugins, "_process", found)
        try:
            found.open(found.find("ane:0"), {"ane": options or {}})
            opened = umbel_ane._open["ane:0"]
            opened.splits.planning = True
            with umbel.load(path, device="ane:0", **how) as model:
                yield model, opened
        finally:
            found.close()


def steps(model: umbel.Model, opened: Opened) -> Iterator[explain.Step]:
    """Every shape of step that `umbel ane explain` tells of; with adapters and without, of two
    sequences, and of whole texts, where a model is loaded for that."""
    yield from explain.steps(model, opened, "ane")
    runner, more = model.runner, []
    first = runner.usual[0]
    if runner.settings.adapters.slots:
        more += [first._replace(adapted=not first.adapted)]
    if runner.settings.parallel > 1:
        more += [first._replace(sequences=2, rows=2)]
    if runner.encodes:
        more += [whole(model, n) for n in (16, 64)]
    for shape in more:
        yield explain.Step(shape, tuple(compiled(model, opened, shape)), {})


def whole(model: umbel.Model, tokens: int) -> StepShape:
    """The step of an encoder for a text of so many tokens."""
    return model.runner.padded(StepShape(tokens, 1, tokens, tokens, whole=True))


def compiled(model: umbel.Model, opened: Opened, shape: StepShape) -> list[Compiled]:
    """The programs of one step."""
    found: list[Compiled] = []
    for step in model.runner.plan(shape).steps:
        if step.target.device.backend == "ane":
            found += opened.splits.compile(step.graph, False)
    return found


def handed_over(program: Compiled) -> Made:
    """As a driver gets it, with the surfaces that its ports are bound to."""
    text = program.text
    inputs = [program.input_bytes] * len(program.inputs)
    outputs = [program.output_bytes] * len(program.outputs)
    parsed = parse(text.decode())
    return Made(program.profile, parsed, program.weights, inputs, outputs, text)


@attrs.frozen
class Written:
    """A program of a model: where it is from, and what is handed over."""

    step: str
    name: str
    made: Made

    def __str__(self) -> str:
        return f"{self.name} for {self.step}"


def written(path: Path, profile: str, **how: Any) -> list[Written]:
    with planning(path, profile, **how) as (model, opened):
        return [
            Written(f"{path.stem}, {step.title}", p.name, handed_over(p))
            for step in steps(model, opened)
            for p in step.programs
        ]
