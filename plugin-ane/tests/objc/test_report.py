"""The report finds out the rules of the machine under it: here of simulators."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from ane_framework import Framework
from umbel_ane import profile
from umbel_ane import report as reports
from umbel_ane.drivers import AneError
from umbel_ane.drivers.objc import Private
from umbel_ane.drivers.simulator import Simulator
from umbel_ane.experiments import runs
from umbel_ane.experiments.bench import MOST, Bench, Found, Loaded
from umbel_ane.profile import Profile

RULES = {
    *(
        "reload",
        "id_of_contents",
        "binding",
        "uniform_outputs",
        "uniform_inputs",
        "min_surface",
    ),
    *("drops_nan", "max_inputs", "inner_multiple", "saturates_at", "slice_saturates_at"),
    *("masked_sdpa", "runtime_conv", "refused", "conv_bias", "named_flags", "live_outputs"),
    *("fp32_io", "blob_error", "palettes", "spatial_multiple", "max_channels", "one_file"),
    *("max_files", "scalar_takes_file"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "EVALUATIONS", 3)


def found(rules: Profile) -> list[Found]:
    bench = Bench(Simulator(rules))
    every = [one for one, _ in reports._found(bench)]
    assert bench.compiles <= MOST
    assert not [one for one in every if "failed" in one.answer]
    return every


def wrong(every: Sequence[Found], rules: Profile) -> set[str]:
    return {one.rule for one in every if one.agrees is not None and not one.agrees(rules)}


@pytest.mark.parametrize("name", profile.names())
def test_it_finds_the_profile(name: str) -> None:
    every = found(profile.load(name))
    assert wrong(every, profile.load(name)) == set()
    asked = {one.rule for one in every if one.agrees is not None}
    assert asked == (RULES - {"uniform_inputs"} if name == "maderix" else RULES)
    best, second, *_ = reports.fitting(every)
    assert best[0] == name
    assert second[1]  # no other says the same
    assert f"**{name}** fits" in reports._suggestion(every)


CHANGES = {
    "reload": "reread",
    "id_of_contents": True,
    "binding": "declared",
    "uniform_outputs": False,
    "uniform_inputs": False,
    "min_surface": 16384,
    "drops_nan": True,
    "max_inputs": 1,
    "inner_multiple": 32,
    "saturates_at": 0.0,
    "slice_saturates_at": 4094.0,
    "masked_sdpa": True,
    "runtime_conv": True,
    "refused": frozenset({"gelu", "rsqrt", "neg"}),
    "conv_bias": True,
    "named_flags": False,
    "live_outputs": False,
    "fp32_io": False,
    "blob_error": "error",
    "palettes": True,
    "spatial_multiple": 1,
    "max_channels": 65536,
    "one_file": False,
    "max_files": 0,
    "scalar_takes_file": False,
}


@pytest.mark.parametrize("rule", sorted(CHANGES))
def test_each_rule_is_found_out(rule: str) -> None:
    """A machine that differs from the strict profile in one rule."""
    strict = profile.load("orion-m4-macos15")
    changes = {rule: CHANGES[rule]}
    if rule == "max_channels":
        changes["max_dim"] = 65536
    changed = attrs.evolve(strict, **changes)
    every = found(changed)
    assert not wrong(every, changed)
    also = {"max_files": {"max_files", "scalar_takes_file"}}.get(rule, {rule})
    assert wrong(every, strict) == also


def test_all_rules_are_changed() -> None:
    assert set(CHANGES) == RULES


def test_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", "m1")
    monkeypatch.setattr("umbel_ane.drivers.choose.macos", lambda: "")
    text = "\n".join(reports.report())
    assert "simulator (simulated); h13g" in text
    assert "| two weights in one file | refused" in text
    assert "**no**" not in text
    assert "The profile **m1** fits" in text
    assert "## Methods" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_a_mac_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why, and does not raise."""
    monkeypatch.setattr("umbel_ane.drivers.choose.macos", lambda: "")
    text = "\n".join(reports.report())
    assert "No experiments" in text
    assert "no Neural Engine here" in text


def test_the_private_api(
    private: Private, framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole report through the fake Objective-C, with its table of methods."""
    framework.encodings["_ANEDeviceInfo", "aneBoardType", True] = "I16@0:8"
    monkeypatch.setattr(reports, "Rubicon", lambda: framework)
    monkeypatch.setattr("umbel_ane.drivers.choose.driver", lambda kind: private)
    text = "\n".join(reports.report())
    assert "| `-[_ANEInMemoryModel compiledModelExists]` | `B16@0:8` | `B16@0:8` | ok |" in text
    assert "| `q16@0:8` | `I16@0:8` | **differs** |" in text
    assert "Driver: private API; h16g" in text
    assert "The profile **orion-m4-macos15** fits" in text
    assert "failed" not in text


def test_an_experiment_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is a line of the report, and the others go on."""

    def fails(self: Loaded, *args: object, **kwargs: object) -> None:
        msg = "an evaluation failed"
        raise AneError(msg, code=0x1D, text="Program Inference error")

    monkeypatch.setattr(Loaded, "run", fails)
    simulator = Simulator(profile.load())
    text = "\n".join(reports.experiments(simulator))
    assert "convolution: what is left of it | failed: an evaluation failed" in text
    assert "0x1d: Program Inference error" in text
    assert "| concat | refused" in text


def test_a_machine_like_none() -> None:
    strict = profile.load("orion-m4-macos15")
    every = found(attrs.evolve(strict, min_surface=16384, conv_bias=True))
    said = reports._suggestion(every)
    assert "Nearest: **orion-m4-macos15**, with 2 of" in said
    assert "`conv_bias`, `min_surface`" in said


def test_it_never_compiles_too_much() -> None:
    bench = Bench(Simulator(profile.load()), compiles=MOST)
    with pytest.raises(AneError, match="no more than 25"):
        next(runs.convolution(bench))
