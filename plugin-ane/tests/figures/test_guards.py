"""No program that the compiler writes breaks one of the 20 constraints.

Every model's programs are looked at, under each profile. How each constraint is broken, and
what then happens, is in simulator/test_constraints.py. What a program does not show is guarded
by the tests that ELSEWHERE names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from large import Size, write_llama
from planned import Written, handed_over, planning, steps, written
from umbel_ane import profile as profiles
from umbel_ane.drivers import Request
from umbel_ane.drivers.simulator import Simulator
from umbel_ane.drivers.simulator import model as simulated
from umbel_ane.drivers.simulator.checks import CONSTRAINTS, LIMITS, Made
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Literal, Ref

ORACLES = Path(__file__).parents[3] / "core" / "tests" / "data" / "oracles"
PROFILES = ("orion-m4-macos15", "m1", "m4-macos27", "permissive")
MODELS: Mapping[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"adapters": ORACLES / "llama-lora.gguf", "parallel": 2},
    "qwen2": {},
    "qwen3": {},
    "bert": {},
}
GIVEN = "figures/test_guards.py", "test_what_the_driver_is_given"
ELSEWHERE: Mapping[int, tuple[str, str]] = {  # constraints, and the tests that guard them
    5: ("runtime/test_models.py", "test_compiles_are_counted"),
    7: ("runtime/test_ladder.py", "test_weights_as_inputs"),
    9: GIVEN,
    11: GIVEN,
    15: ("figures/test_guards.py", "test_no_process_is_restarted"),
}


@cache
def programs(profile: str) -> tuple[Written, ...]:
    """Of all models: one token at each length of context, and prompts of some buckets."""
    found: list[Written] = []
    for name, how in MODELS.items():
        found += written(ORACLES / f"{name}.gguf", profile, ctx=128, ubatch=64, **how)
    return tuple(found)


@pytest.mark.parametrize("profile", PROFILES)
def test_there_are_programs(profile: str) -> None:
    """Of each model, of one token and of many; and with adapters more inputs."""
    steps = {p.step for p in programs(profile)}
    for name in MODELS:
        kinds = {"decode", "prefill"} if name != "bert" else {"prefill"}
        assert {s.split()[1] for s in steps if s.startswith(f"{name},")} == kinds
    assert all(p.made.text and p.made.weights for p in programs(profile))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("number", [n for n in CONSTRAINTS if n not in ELSEWHERE])
def test_constraint(number: int, profile: str) -> None:
    rule = CONSTRAINTS[number]
    found = [f"{p}: {broken}" for p in programs(profile) for broken in rule.check(p.made)]
    assert found == [], str(rule)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("rule", LIMITS, ids=str)
def test_limit(rule: Any, profile: str) -> None:
    """The other limits that are known."""
    found = [f"{p}: {broken}" for p in programs(profile) for broken in rule.check(p.made)]
    assert found == []


@pytest.mark.parametrize("profile", PROFILES)
def test_weights_go_through_convolutions(profile: str) -> None:
    """17: no matrix of a file is an operand of a matmul."""
    seen = 0
    for each in programs(profile):
        main, used = each.made.main, dict[str, set[str]]()
        for s in main.statements:
            for name in s.refs():
                used.setdefault(name, set()).add(s.op)
        for s in main.statements:
            if s.op == "const" and _matrix(s.results[0].type.dims):
                seen += 1
                assert "matmul" not in used.get(s.name, set()), f"{each}: {s.name}"
    assert seen > 0


def _matrix(dims: tuple[int | None, ...] | None) -> bool:
    return dims is not None and sum((d or 1) > 1 for d in dims) > 1


@pytest.mark.parametrize("profile", PROFILES)
def test_flags_and_settings_are_named(profile: str) -> None:
    """12, also where a profile would take them in place: one form is written everywhere."""
    for each in programs(profile):
        for s in each.made.main.statements:
            given = [a for a in s.args.values() if isinstance(a, Literal)]
            assert s.op == "const" or given == [], f"{each}: {s.name}"
            if s.op == "matmul":
                assert isinstance(s.args["transpose_x"], Ref)


@pytest.mark.parametrize("profile", PROFILES)
def test_surfaces_of_a_run(
    oracles: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """2, 4, 18, 20: of what is bound in a prefill and a decode. One size for all inputs and one
    for all outputs, also where a profile would take several."""
    ran: list[Made] = []
    plain = simulated.Model.evaluate

    def evaluate(self: simulated.Model, request: Request, qos: int = 21) -> None:
        sizes = [s.nbytes for s in request.inputs], [s.nbytes for s in request.outputs]
        ran.append(Made(self.profile, parse(self.descriptor.text), {}, *sizes))
        plain(self, request, qos)

    monkeypatch.setattr(simulated.Model, "evaluate", evaluate)
    how = {"ctx": 64, "ubatch": 32}
    with (
        planning(oracles / "llama.gguf", profile, **how) as (model, _),
        model.open() as session,
    ):
        session.feed([1 + i for i in range(20)])
        session.feed([5])
    assert max(len(made.inputs) for made in ran) > 1
    assert max(len(made.outputs) for made in ran) > 1
    for made in ran:
        assert len(set(made.inputs)) == len(set(made.outputs)) == 1
        assert [why for n in (2, 4, 18, 20) for why in CONSTRAINTS[n].check(made)] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_a_head_wider_than_the_profile_takes(tmp_path: Path, profile: str) -> None:
    """16: it is cut, and every piece is computed on the engine."""
    words, path = profiles.load(profile).max_channels + 4000, tmp_path / "wide.gguf"
    write_llama(path, Size(1, 32, 64, 4, 2, words, 64))
    with planning(path, profile, {"head": "ane"}, ctx=64, ubatch=16) as (model, opened):
        for step in steps(model, opened):
            assert not any(node == "output" for node, _, _ in step.elsewhere), step.title
            heads = [
                sum(
                    n.shape[1] for n in p.graph.nodes() if n.op == "conv1x1" and n.shape[1] > 64
                )
                for p in step.programs
            ]
            assert sum(heads) == words, step.title
            for made in map(handed_over, step.programs):
                rules = (*CONSTRAINTS.values(), *LIMITS)
                assert [why for rule in rules for why in rule.check(made)] == []


def test_what_the_driver_is_given(oracles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9, 11: bytes, and a mapping, of every program that a model loads."""
    given: list[tuple[object, object]] = []
    plain: Callable[..., Any] = Simulator.descriptor

    def descriptor(self: Simulator, text: bytes, weights: Mapping[str, bytes]) -> Any:
        given.append((text, weights))
        return plain(self, text, weights)

    monkeypatch.setattr(Simulator, "descriptor", descriptor)
    with planning(oracles / "llama.gguf", PROFILES[0], ctx=64) as (model, _):
        model.logits([1, 5, 9])
    assert given
    assert {type(text) for text, _ in given} == {bytes}
    assert all(isinstance(weights, Mapping) for _, weights in given)


def test_no_process_is_restarted(oracles: Path) -> None:
    """15: one process compiles all that a model needs, and no other is started for it."""
    with planning(oracles / "gpt2.gguf", PROFILES[0], ctx=64) as (model, opened):
        model.logits([1, 5, 9])
        model.logits(list(range(20)))
        assert opened.driver.compiles > 0
        assert opened.programs.child.restarts == 0


@pytest.mark.parametrize(("file", "test"), sorted(set(ELSEWHERE.values())))
def test_guards_are_there(file: str, test: str) -> None:
    text = Path(__file__).parents[1].joinpath(file).read_text("utf-8")
    assert f"def {test}(" in text
