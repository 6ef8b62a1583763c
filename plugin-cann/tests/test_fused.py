"""Fused nodes and recorded steps, on simulated chips: results, launches, foreign calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stepping import write_qwen2
from umbel.gguf.types import F32

HERE = Path(__file__).parent
CHIPS = [("310B", "auto"), ("310P", "auto"), ("910B", "auto"), ("910B", "f16")]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen2's shape, narrow: `deep.gguf` of 24 layers, `whole.gguf` of two with float32."""
    folder = tmp_path_factory.mktemp("models")
    write_qwen2(folder / "deep.gguf", layers=24)
    write_qwen2(folder / "whole.gguf", layers=2, weights=F32)
    return folder


def told(run: Run, chip: str, program: object, *arguments: object) -> Any:
    done = run(chip, program, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("chip", "dtype"), CHIPS)
def test_as_the_reference(run: Run, chip: str, dtype: str) -> None:
    """NMSE as the conformance suite allows it: float32, with weights of float16, and float16
    for some operations in a row."""
    found = told(run, chip, HERE / "fused.py", dtype)
    whole = chip == "910B" and dtype == "auto"
    assert len(found) == 2 * 27
    for name, case in found.items():
        most = (1e-7 if name.endswith("f32") else 5e-7) if whole else 2e-6
        assert case["off"] < most, name
    for name, operator, count in FORMS[chip, dtype]:
        assert case_of(found, name).count(operator) == count, (name, operator)


def case_of(found: Any, name: str) -> list[str]:
    return list(found[name]["launches"])


_TURNED = "RotaryPositionEmbedding"
_ATTENTION = "FusedInferAttentionScoreV2"
_EVERYWHERE = [
    ("norm_of_part, f32", "AddRmsNorm", 0),
    ("gate_given, f32", "SwiGlu", 0),
    ("swiglu 3x97, f32", "SwiGlu", 0),
    ("rope neox 16, f16", _TURNED, 0),
    ("rope neox 16, f16", "Sub", 0),
    ("rope norm 16 of a part, f32", "Sub", 0),
    ("rope neox 16, f32", "BatchMatMul", 2),
    ("rope neox 16 of many tokens, f16", "BatchMatMul", 0),
    ("rope neox 16 of many tokens, f16", "Mm", 5),
    ("attention (1, 5, 4, 24), f16", _ATTENTION, 0),
    ("attention, other mask, f16", _ATTENTION, 0),
    ("within, f16", "Cat", 0),
]
_WITH_NORMS = [
    ("residual, f16", "AddRmsNorm", 3),
    ("gate_read_again, f32", "SwiGlu", 1),
    ("swiglu 1x96, f16", "SwiGlu", 1),
    ("swiglu 3x96, f32", "SwiGlu", 1),
    ("geglu 3x96, f32", "GeGluV3", 1),
    ("biased, f32", "Addmm", 2),
]
_ON_910B = [
    ("rope norm 16, f16", _TURNED, 2),
    ("rope neox 32 of a part, f32", _TURNED, 2),
    ("attention (2, 3, 2, 64), f16", _ATTENTION, 1),
    ("attention (2, 1, 4, 32), f16", _ATTENTION, 1),
]
FORMS = {
    ("310B", "auto"): [
        *_EVERYWHERE,
        ("residual, f16", "AddRmsNorm", 0),
        ("biased, f16", "Addmm", 2),
        ("rope norm 32, f16", "BatchMatMul", 2),
        ("rope norm 32, f16", "Mul", 2),
    ],
    ("310P", "auto"): [*_EVERYWHERE, *_WITH_NORMS, ("rope norm 32, f16", _TURNED, 2)],
    ("910B", "auto"): [
        *_EVERYWHERE,
        *_WITH_NORMS,
        *_ON_910B,
        ("biased, f16", "Addmm", 0),  # the sum is float32
        ("attention (2, 3, 2, 64), f32", _ATTENTION, 0),
        ("swiglu 3x96, f16", "Cast", 2),
        ("gate_read_again, f16", "SwiGlu", 0),
    ],
    ("910B", "f16"): [
        *_EVERYWHERE,
        *_WITH_NORMS,
        *_ON_910B,
        ("biased, f16", "Addmm", 2),
        ("within, f16", _ATTENTION, 1),
        ("attention (2, 3, 2, 64), f16", "Cast", 0),
    ],
}

STEPS = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import json
from umbel import plugins
import stepping
runner = stepping.open_model(sys.argv[1], sys.argv[2], ctx=128)
if "launches" in sys.argv:
    stepping.capture(False)
for _ in range(2):  # the second time, the prompt is recorded
    stepping.talk(runner, 4)
before = stepping.counters()
stepping.talk(runner, 10)
after = stepping.counters()
found = {{k: after[k] - before.get(k, 0) for k in after}}
calls = stepping.count_calls()
sequence = stepping.Sequence()
runner.forward(sequence, [1, 5, 9])
for i in range(3):
    runner.decode([sequence], [i])
calls.clear()
runner.decode([sequence], [3])
found["calls"] = sum(calls.values())
found["per step"] = len(stepping.programs().made[max(stepping.programs().made)].launches)
print(json.dumps(found))
runner.close()
plugins.get().close()
"""


_steps: dict[tuple[str, ...], dict[str, float]] = {}


def steps(run: Run, chip: str, model: Path, dtype: str, *how: str) -> dict[str, float]:
    """What is counted of them, once for all tests."""
    key = (chip, dtype, *how)
    if key not in _steps:
        _steps[key] = told(run, chip, "-c", STEPS, model, dtype, *how)
    return _steps[key]


@pytest.mark.parametrize("dtype", ["auto", "f16"])
def test_fewer_launches(run: Run, models: Path, dtype: str) -> None:
    """Of 24 layers of qwen2's shape on a 910B."""
    fused = steps(run, "910B", models / "deep.gguf", dtype, "launches")
    most = {"auto": 660, "f16": 420}[dtype]  # of 1473 and 1038 when nothing was fused
    assert fused["per step"] <= most
    replayed = steps(run, "910B", models / "deep.gguf", dtype)
    assert replayed["busy"] < fused["busy"] / 10
    assert (replayed["replays"], replayed["launches"]) == (11, 0)


@pytest.mark.parametrize("chip", ["310B", "310P", "910B"])
def test_foreign_calls(run: Run, models: Path, chip: str) -> None:
    """As many as launches, and what takes inputs there, waits, and fetches the logits."""
    found = steps(run, chip, models / "deep.gguf", "auto", "launches")
    assert found["per step"] < found["calls"] <= found["per step"] + 4
    assert found["synchronises"] == 11
    if chip == "910B":
        assert steps(run, chip, models / "deep.gguf", "auto")["calls"] <= 5


@pytest.mark.parametrize("chip", ["310B", "310P", "910B"])
def test_several_sequences_make_nothing_either(run: Run, chip: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import stepping
from umbel import plugins
runner = stepping.open_model(sys.argv[1])
for _ in range(2):  # what had less scratch memory is made once more
    stepping.talk(runner, 3, others=2)
made = ("descriptors", "executors", "phase 1", "mallocs")
before = stepping.counters()
stepping.talk(runner, 8, others=2)
after = stepping.counters()
assert [after[k] for k in made] == [before[k] for k in made], (before, after)
runner.close()
plugins.get().close()
"""
    oracles = HERE.parents[1] / "core/tests/data/oracles"
    for model in ("qwen2", "gemma3", "lfm2"):
        done = run(chip, "-c", program, oracles / f"{model}.gguf")
        assert done.returncode == 0, done.stderr
