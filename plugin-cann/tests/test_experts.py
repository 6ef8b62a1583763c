"""Experts of few bits on simulated chips: their products, a model, what it takes and costs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experts import MODEL
from stepping import write_qwen3moe
from umbel.gguf.types import BY_NAME, DType

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = Path(__file__).parent / "experts.py"
TYPES = {"gate_inp": "f32", "gate_exps": "q4_k", "up_exps": "q4_0", "down_exps": "q6_k"}
QUANTISED = "WeightQuantBatchMatmulV2"


def kept(name: str) -> DType:
    """A file of several types, as those that are called Q4_K_M are."""
    return BY_NAME[next((t for part, t in TYPES.items() if part in name), "q8_0")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "experts.gguf"
    write_qwen3moe(path, MODEL, kept)
    return path


def told(run: Run, chip: str, *arguments: object, **given: str) -> Any:
    done = run(chip, PROGRAM, *arguments, **given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("chip", ["310P", "910B"])
def test_products(run: Run, chip: str) -> None:
    """Few experts are copied, and a token's are one product; of more all are computed. Where
    an operator takes few columns, or memory is little, in pieces."""
    found = told(run, chip, "products")
    assert len(found) == 20
    for one in found:
        assert one["off"] < 2e-7, one
        (n, own, most, _), launches = one["case"], one["launches"]
        gathers, products = launches.count("GatherV2"), launches.count(QUANTISED)
        whole = most > 80  # columns of a token's two matrices
        if 3 * 2 * n <= 12:
            assert gathers == (3 if one["name"] == "q4_1" else 2), one
            assert products == (n if whole else 2 * n), one
            assert launches.count("InplaceCopy") == (own > 1 and whole), one
        else:
            steps = 3 if own > 1 and not whole else 1  # of two tokens, and one
            assert gathers == (1 if whole else 2 * steps), one
            assert products == (1 if whole else 12 * steps), one
            assert "InplaceCopy" not in launches, one


@pytest.mark.parametrize("chip", ["310B", "310P", "910B"])
def test_a_mixture(run: Run, model: Path, chip: str) -> None:
    """The host's logits. Where a chip multiplies few bits the experts take what they take in
    the file, or 8 bits; a token touches less, and launches little more."""
    few, whole = told(run, chip, "mixture", model)
    for found in (few, whole):
        assert found["off"] < 2e-3
        assert chip == "310B" or found["made"] == 0
        assert found["elsewhere"] == (["top_k"] if chip == "310B" else [])
    if chip == "310B":
        assert few["weights"] == whole["weights"]
        return
    assert few["waits"] == 1
    of_file = few["weights"] / model.stat().st_size
    assert of_file < (1.6 if chip == "310P" else 1.15)
    assert few["weights"] < (0.57 if chip == "310P" else 0.41) * whole["weights"]
    assert few["bytes"] < (0.65 if chip == "310P" else 0.5) * whole["bytes"]
    assert few["launches"] <= whole["launches"] + 2 * 5  # scales and offsets, of two layers


@pytest.mark.parametrize("split", ["layer", "row"])
def test_two_chips(run: Run, model: Path, split: str) -> None:
    """Layers of experts on each; or all experts on the first, for theirs are no rows to cut."""
    found = told(run, "910B", "shared", model, split)
    assert found["off"] < 2e-3
    one, two = found["weights"]
    assert one + two < 1.2 * model.stat().st_size
    assert (0.8 < two / one < 1.25) if split == "layer" else two < one / 4


def test_memory(run: Run, model: Path) -> None:
    """What is refused before it is loaded is counted as it is kept."""
    refused = told(run, "910B", "fits", model, fault="memory=7000000")["refused"]
    assert "the model does not fit into the memory of cann:0" in refused
