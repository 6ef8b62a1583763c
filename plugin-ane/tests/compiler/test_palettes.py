"""Weights as 4-bit and 8-bit palettes: what they lose, what they take, that they run."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import broken_rules, by_reference, by_simulator, close, compiled
from umbel.errors import OptionError
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Graph, Weight
from umbel_ane.compiler.palettes import error, palettised, table_of, with_palette
from umbel_ane.compiler.reference import evaluate
from umbel_ane.profile import load

MACOS27, STRICT = load("m4-macos27"), load("orion-m4-macos15")
SHAPE = (192, 128, 1, 1)


def projection(values: np.ndarray) -> Graph:
    b = IRBuilder()
    w = b.weight(Weight("w", lambda: values), SHAPE)
    return Graph({"y": b.conv1x1(b.input("x", (1, 128, 1, 16)), w)})


@pytest.fixture(scope="module")
def normal() -> np.ndarray:
    """Normal weights whose rows are of different sizes, as those of models are."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.standard_normal((192, 1, 1, 1)) * 0.3)
    return (rng.standard_normal(SHAPE) * sizes).astype(np.float32)


@pytest.mark.parametrize(("bits", "best"), [(4, 9.50e-3), (8, 4.15e-5)])
def test_what_a_palette_loses(bits: int, best: float) -> None:
    """Of a normal distribution what its best quantiser does (Max, 1960: 9.5e-3 with 16 levels;
    Panter and Dite: 2.72 / n^2 with many): more would say that k-means stopped too early."""
    graph = projection(np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))
    node = next(n for n in graph.nodes() if n.op == "const")
    assert node.weight is not None
    made = with_palette(node, node.weight, bits)
    assert made.palette is not None
    indices, tables = made.palette.read()
    assert (indices.shape, tables.shape) == (SHAPE, (12, 1 << bits))
    assert int(indices.max()) < 1 << bits
    palette = palettised(graph, f"palette{bits}")
    stored = next(n for n in palette.nodes() if n.op == "const")
    assert best / 2 < error(stored, node.weight) < 1.1 * best


def test_few_values_are_kept_exactly() -> None:
    values = np.random.default_rng(0).choice([-2.5, 0.0, 0.125, 7.0], 500).astype(np.float32)
    indices, table = table_of(values, 4)
    np.testing.assert_array_equal(table[indices].astype(np.float32), values)


def test_every_value_has_the_nearest_entry() -> None:
    values = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    indices, table = table_of(values, 4)
    assert (np.diff(table.astype(np.float32)) >= 0).all()
    distance = np.abs(values[:, None] - table.astype(np.float32))
    np.testing.assert_allclose(
        distance[np.arange(len(values)), indices], distance.min(1), atol=1e-6
    )


@pytest.mark.parametrize(("choice", "least"), [("palette4", 3.7), ("palette8", 1.55)])
def test_programs_with_palettes(choice: str, least: float, normal: np.ndarray) -> None:
    """They run, compute what their own graph says, and take so much less."""
    graph = projection(normal)
    (program,) = compiled(graph, MACOS27, weights=choice)
    assert b"constexpr_lut_to_dense" in program.text
    assert broken_rules(program) == []
    x = {"x": np.random.default_rng(1).standard_normal((1, 128, 1, 16)).astype(np.float16)}
    got = {"y": by_simulator([program], x)["y"].astype(np.float32)}
    close(got, by_reference([program], x, "fp32"), 1e-3)
    loss = np.square(got["y"] - evaluate(graph, x)["y"]).sum() / np.square(got["y"]).sum()
    assert loss < (1.5e-2 if choice == "palette4" else 3e-4)
    assert program.counts.fp16_bytes / program.counts.weight_bytes > least


def test_a_profile_without_palettes_says_so(normal: np.ndarray) -> None:
    (program,) = compiled(projection(normal), STRICT, weights="palette8")
    assert b"constexpr" not in program.text
    assert "takes no palettes" in program.warnings[0]


def test_an_unknown_form_is_refused(normal: np.ndarray) -> None:
    with pytest.raises(OptionError, match="palette4, palette8"):
        compiled(projection(normal), MACOS27, weights="palette6")
