"""Elementwise operations and gated linear units against scalar formulas."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME
from umbel.graph import Builder, Role
from umbel.ops import OPS

TANH_GELU = math.sqrt(2 / math.pi)
SCALAR = {
    "sqr": lambda x: x * x,
    "exp": math.exp,
    "neg": lambda x: -x,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(TANH_GELU * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_quick": lambda x: x / (1 + math.exp(-1.702 * x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
}
GATES = {
    "reglu": SCALAR["relu"],
    "swiglu": SCALAR["silu"],
    "geglu": SCALAR["gelu"],
    "geglu_erf": SCALAR["gelu_erf"],
    "geglu_quick": SCALAR["gelu_quick"],
}
ACTIVATIONS = ("silu", "gelu", "gelu_erf", "gelu_quick", "softplus")
X = np.linspace(-9, 9, 721, dtype=np.float32).reshape(7, 103)


def scalar(name, x):
    return np.array([SCALAR[name](float(v)) for v in x.ravel()]).reshape(x.shape)


@pytest.mark.parametrize("name", SCALAR)
def test_unary(ops, name):
    """Each function agrees with its scalar formula in float64."""
    expected = scalar(name, X)
    assert np.abs(expected - ops.reference(name, X)).max() <= 4e-7 * np.abs(expected).max()


def test_sqrt(ops):
    """Roots agree with the scalar formula over many orders of magnitude."""
    x = np.geomspace(1e-6, 1e6, 50, dtype=np.float32)
    np.testing.assert_allclose(ops.reference("sqrt", x), [math.sqrt(v) for v in x], rtol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_parts(ops, name):
    """The decomposition is the activation, in float32 and in float16."""
    expected = scalar(name, X)
    assert ops.nmse(expected, ops.decomposed(name, X)) < 1e-10
    half = X.astype(np.float16).astype(np.float32)
    actual = ops.decomposed(name, half, compute="f16")
    assert ops.nmse(scalar(name, half), actual) < 2e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("compute", ["f32", "f16"])
def test_activation_of_large(ops, name, compute):
    """Far from zero an activation is 0 or x, never NaN, whatever its decomposition squares."""
    x = np.array([-6e4, -1e3, -50, 0, 50, 1e3, 6e4], np.float32)
    expected = np.maximum(x, 0)
    if name == "softplus":
        expected[3] = math.log(2)
    rounded = expected if compute == "f32" else expected.astype(np.float16)
    np.testing.assert_allclose(ops.reference(name, x), expected, rtol=1e-6, atol=1e-6)
    actual = ops.decomposed(name, x, compute=compute)
    np.testing.assert_allclose(actual, rounded, rtol=1e-3, atol=1e-6)


def test_gelu_erf_parts_to_the_last_digits(ops):
    """The fitted polynomial errs by 3.1e-6 at most, anywhere."""
    x = np.linspace(-30, 30, 6001, dtype=np.float32)
    assert np.abs(scalar("gelu_erf", x) - ops.decomposed("gelu_erf", x)).max() < 3.5e-6


def test_softplus_keeps_small_steps_in_f16(ops):
    """A mamba's small time steps survive float16: 1 + exp(x) would have lost them."""
    x = np.arange(-9, -3, dtype=np.float32)
    actual = ops.decomposed("softplus", x, compute="f16")
    np.testing.assert_allclose(actual, np.log1p(np.exp(x)), rtol=3e-3)


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 5), (5,), (1, 5), (4, 1, 1), (3, 1), ()])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_binary_broadcast(ops, normal, name, shape):
    """The second operand broadcasts to the first."""
    a, b = normal(4, 3, 5), normal(*shape) + 3
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    full = np.broadcast_to(b, a.shape).astype(np.float64)
    np.testing.assert_allclose(
        ops.reference(name, a, b), function(a.astype(np.float64), full), rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (4,), (1, 4, 3, 5)])
def test_binary_refused(ops, normal, shape):
    """A second operand that does not broadcast is refused with both shapes."""
    with pytest.raises(GraphError, match="add") as caught:
        ops.reference("add", normal(4, 3, 5), normal(*shape))
    assert "[4, 3, 5] f32" in caught.value.got
    assert f"{list(shape)} f32" in caught.value.got


def test_integers_refused(ops):
    """Arithmetic is for real numbers."""
    with pytest.raises(GraphError, match="exp"):
        ops.reference("exp", np.arange(3, dtype=np.int32))


def test_scale_and_clamp(ops):
    """scale is s x + b, clamp keeps within bounds; wrong bounds are refused."""
    x = np.array([-3, 0.5, 3], np.float32)
    assert ops.reference("scale", x, s=2.0, b=1.0).tolist() == [-5, 2, 7]
    assert ops.reference("scale", x, s=2.0).tolist() == [-6, 1, 6]
    assert ops.reference("clamp", x, min=-1.0, max=2.0).tolist() == [-1, 0.5, 2]
    with pytest.raises(GraphError, match="clamp"):
        ops.reference("clamp", x, min=2.0, max=1.0)


def test_cast(ops):
    """Casts round to the nearest, integers truncate, too large is infinite in float16."""
    x = np.array([1.0009765625, -2.7, 7e4], np.float32)
    assert ops.reference("cast", x, dtype="f16").tolist() == [np.float16(v) for v in x[:2]] + [
        math.inf
    ]
    assert ops.reference("cast", x, dtype="i32").tolist() == [1, -2, 70000]
    assert ops.reference("cast", np.array([3], np.int32), dtype="f32").tolist() == [3.0]
    for dtype in ("q8_0", "float16"):
        with pytest.raises(GraphError, match="cast"):
            ops.reference("cast", x, dtype=dtype)


@given(st.floats(width=32, allow_nan=False))
@settings(max_examples=200, deadline=None)
def test_cast_to_bf16(x):
    """bfloat16 is the nearest of the two neighbours with 8 bits, ties to even."""
    value = np.array([x], np.float32)
    kept = value.view(np.uint32) & 0xFFFF0000
    below = float(kept.view(np.float32)[0])
    above = float((kept + 0x10000).astype(np.uint32).view(np.float32)[0])
    if math.isinf(above) or math.isnan(above) or math.isinf(x):
        return
    expected = below if abs(x - below) < abs(above - x) else above
    if abs(x - below) == abs(above - x):
        expected = below if not int(kept[0]) >> 16 & 1 else above
    assert float(OPS["cast"].reference(value, dtype="bf16")[0]) == expected


def test_bf16_ties(ops):
    """Half way between two neighbours the even one is taken."""
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 3 * 2**-8], np.float32)
    assert ops.reference("cast", x, dtype="bf16").tolist() == [1, 1 + 2**-6, -1 - 2**-6]


def test_bf16_keeps_nan(ops):
    """A NaN stays one; rounding its bits could make it infinite."""
    bits = np.array([0x7F80_0001, 0x7FFF_FFFF], np.uint32)
    assert np.isnan(ops.reference("cast", bits.view(np.float32), dtype="bf16")).all()


def test_result_dtype():
    """A result stays in the float dtype of its first operand; others become f32."""
    build = Builder(OPS)
    for name, expected in (("f16", "f16"), ("bf16", "bf16"), ("q8_0", "f32")):
        x = build.leaf(Role.WEIGHT, name, (2, 32), BY_NAME[name])
        assert build.neg(x).dtype.name == expected


def test_cont(ops, normal):
    """cont copies what is not contiguous."""
    x = normal(3, 4).T
    assert ops.reference("cont", x).flags.c_contiguous


@pytest.mark.parametrize("name", [*SCALAR, "scale", "clamp", "cont"])
def test_zero_sized(ops, name):
    """No values in, no values out."""
    attributes = {"scale": {"s": 1.0}, "clamp": {"min": 0.0, "max": 1.0}}.get(name, {})
    assert ops.reference(name, np.zeros((0, 4), np.float32), **attributes).shape == (0, 4)


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
def test_glu_refused(ops, normal, name):
    """Gate and up have one shape."""
    with pytest.raises(GraphError, match=name):
        ops.reference(name, normal(4, 8), normal(8))
