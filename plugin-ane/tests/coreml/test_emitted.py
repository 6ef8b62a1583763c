"""What the compiler emits, through coremltools: every type is checked, and the numbers are
those of the compiler's own reference."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import samples
from umbel_ane import profile
from umbel_ane.compiler import reference
from umbel_ane.compiler.emit import emit
from umbel_ane.compiler.ir import FP32, Graph, Node, rebuilt
from umbel_ane.coreml.translate import build, evaluate
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Program
from umbel_ane.mil.text import write

pytest.importorskip("coremltools")

settled = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def through_text(graph: Graph, floats: str) -> tuple[Program, dict[str, bytes]]:
    inputs = sorted(node.name for node in graph.inputs())
    emitted = emit(graph, inputs, list(graph.outputs), profile.load())
    weights = {path: file.read() for path, file in emitted.weights.items()}
    return parse(write(emitted.program, floats)), weights


@pytest.mark.parametrize("floats", ["hex", "decimal"])
@settled
@given(samples())
def test_types(floats: str, sample: Any) -> None:
    """All results have the declared types, built and computed; float16 as it is emitted."""
    program, weights = through_text(sample.graph, floats)
    build(program, weights)
    inputs = {v.name: sample.values[v.name] for v in program.main.inputs}
    with np.errstate(all="ignore"):
        found = evaluate(program, weights, inputs)
    types = program.main.types()
    for name, node in sample.graph.outputs.items():
        assert (types[name].dtype, found[name].shape) == (node.dtype, node.shape)


@settled
@given(samples())
def test_numbers(sample: Any) -> None:
    """In float32, where only the order of sums differs: float16 would round at every step, and
    coremltools within its operations too."""
    wide: dict[Node, Node] = {}

    def widened(node: Node) -> Node:
        return wide.setdefault(node, attrs.evolve(node, dtype=FP32))

    graph = rebuilt(sample.graph, widened)
    program, weights = through_text(graph, "hex")
    inputs = {v.name: sample.values[v.name].astype("f") for v in program.main.inputs}
    with np.errstate(all="ignore"):
        found = evaluate(program, weights, inputs)
    expected = reference.evaluate(graph, inputs, "fp32")
    assert list(found) == list(expected)
    for name, values in found.items():
        finite = np.isfinite(expected[name])
        np.testing.assert_array_equal(np.isfinite(values), finite, name)
        scale = np.abs(expected[name][finite]).max(initial=1e-3)
        worst = np.abs(values - expected[name])[finite].max(initial=0)
        assert worst <= 1e-4 * scale, name
