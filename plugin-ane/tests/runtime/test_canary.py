"""Canaries agree with rounding, and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.gguf.types import F16, I32
from umbel.graph import MASKED, Role, Tensor
from umbel_ane.compiler.ports import Between, OneHot, Port, Whole
from umbel_ane.runtime import canary

IDS = Tensor((3,), I32, Role.INPUT, "out_ids")
MASK = Tensor((1, 1, 3, 32), F16, Role.NODE, "mask")


def test_the_input_is_recorded() -> None:
    """The same for the same ports, of the kind that the port is for."""
    ports = [
        Port("a00", (1, 8, 1, 16), Between(0)),
        Port("a01", (1, 1, 3, 5), OneHot(IDS, 5, (0, 1))),
        Port("a02", (1, 1, 3, 32), Whole(MASK, (0, 1, 2, 3))),
    ]
    first, again = canary.inputs(ports), canary.inputs(ports)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert np.std(first["a00"].astype(np.float32)) == pytest.approx(canary.SIZE, rel=0.3)
    assert first["a01"].sum(axis=3).tolist() == [[[1, 1, 1]]]
    assert set(np.unique(first["a02"]).tolist()) == {MASKED, 0.0}


def _pair(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    want = np.random.default_rng(seed).standard_normal((1, 8, 1, 16)).astype(np.float32)
    return want.astype(np.float16), want


def test_rounding_passes() -> None:
    got, want = _pair()
    verdict = canary.compare("p", {"x": got}, {"x": want})
    assert verdict.passed
    assert verdict.error < 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, 5.0], ids=str)
def test_a_wrong_value_is_named(value) -> None:
    got, want = _pair()
    got[0, 3, 0, 7] = value
    verdict = canary.compare("p", {"x": _pair(1)[1], "y": got}, {"x": _pair(1)[1], "y": want})
    assert not verdict.passed
    assert verdict.output == "y"
    assert "at [0, 3, 0, 7]" in verdict.worst


def test_what_is_permuted_or_stale_is_seen() -> None:
    (got, want), (other, _) = _pair(), _pair(1)
    assert not canary.compare("p", {"x": other}, {"x": want}).passed
    assert not canary.compare("p", {"x": got[:, ::-1]}, {"x": want}).passed
    assert not canary.compare("p", {"x": got * np.float16(1.05)}, {"x": want}).passed


def test_values_beyond_float16_are_not_compared() -> None:
    got, want = _pair()
    want[0, 0, 0, 0], got[0, 0, 0, 0] = 1e6, np.inf
    assert canary.compare("p", {"x": got}, {"x": want}).passed
