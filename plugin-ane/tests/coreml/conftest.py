"""A program, its weights, and what NumPy computes with them; what packages are run with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from umbel_ane.coreml.export import Source
from umbel_ane.coreml.translate import evaluate
from umbel_ane.mil.blob import write_blob
from umbel_ane.mil.parse import parse

# the compiler's random graphs
sys.path.insert(0, str(Path(__file__).parents[1] / "compiler"))

FILE = "@model_path/weights/weight.bin"


@attrs.frozen(eq=False)
class Sample:
    text: str
    weights: dict[str, bytes]
    up: np.ndarray
    bias: np.ndarray

    @property
    def source(self) -> Source:
        return Source(parse(self.text), self.weights)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((1, 8, 1, 16)).astype(np.float16)
        mask = np.where(np.arange(16) < 9, 0, -1e4).astype(np.float16).reshape(1, 1, 1, 16)
        return {"a00_x": x, "a01_mask": mask}

    def expected(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """In float64."""
        x, mask = (inputs[name].astype(np.float64)[0, :, 0] for name in ("a00_x", "a01_mask"))
        normed = x * (x**2).mean(axis=0).__add__(1e-5) ** -0.5
        biased = self.up.astype(np.float64) @ normed + self.bias.astype(np.float64)[:, None]
        silu = biased / (1 + np.exp(-biased))
        masked = silu[4:] + mask
        shares = np.exp(masked - masked.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        y = np.concatenate([silu[:4], masked])
        return {"b00_y": y[None, :, None], "b01_shares": shares[None, :, None]}


@pytest.fixture(scope="session")
def sample() -> Sample:
    """tests/mil/data/newer.mil with random weights."""
    rng = np.random.default_rng(7)
    up = (rng.standard_normal((8, 8)) / 2).astype(np.float16)
    bias = rng.standard_normal(8).astype(np.float16)
    text = Path(__file__).parents[1].joinpath("mil/data/newer.mil").read_text("utf-8")
    return Sample(text, {FILE: write_blob([up, bias])[0]}, up, bias)


class ByInference:
    """In place of Core ML's model: `predict` computes with coremltools' value inference."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.opened: list[Path] = []

    def __call__(self, package: Path) -> ByInference:
        assert package.joinpath("Manifest.json").is_file()
        self.opened.append(package)
        return self

    def predict(self, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
        return evaluate(self.source.program, self.source.weights, arrays)


@pytest.fixture
def by_inference(sample: Sample) -> ByInference:
    return ByInference(sample.source)
