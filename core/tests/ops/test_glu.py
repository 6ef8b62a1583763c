"""Gated linear units against scalar formulas."""

import math

import numpy as np
import pytest
from umbel.errors import GraphError

GATES = {
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "geglu": lambda x: 0.5 * x * (1 + math.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    "geglu_erf": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "geglu_quick": lambda x: x / (1 + math.exp(-1.702 * x)),
    "reglu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", GATES)
def test_glu(ops, normal, name):
    """activation(gate) * up, by the reference and by parts."""
    gate, up = 3 * normal(4, 33), normal(4, 33)
    expected = np.vectorize(GATES[name])(gate.astype(np.float64)) * up
    assert ops.nmse(expected, ops.reference(name, gate, up)) < 1e-11
    assert ops.nmse(expected, ops.decomposed(name, gate, up)) < 1e-10
    half = [t.astype(np.float16).astype(np.float32) for t in (gate, up)]
    expected = np.vectorize(GATES[name])(half[0].astype(np.float64)) * half[1]
    assert ops.nmse(expected, ops.decomposed(name, *half, compute="f16")) < 2e-6


@pytest.mark.parametrize("name", GATES)
def test_large_gates_in_f16(ops, name):
    """A gate at the edge of float16 gives what float16 can hold."""
    gate = np.array([-6e4, -1e3, 0, 1e3, 6e4], np.float32)
    up = np.array([6e4, 6e4, 6e4, 60, 1], np.float32)
    actual = ops.decomposed(name, gate, up, compute="f16")
    np.testing.assert_allclose(actual, [0, 0, 0, 6e4, 6e4], rtol=1e-3)


@pytest.mark.parametrize("name", GATES)
def test_refused(ops, normal, name):
    """Gate and up have one shape."""
    with pytest.raises(GraphError, match=name):
        ops.reference(name, normal(4, 8), normal(8))
