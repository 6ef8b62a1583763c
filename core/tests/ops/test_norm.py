"""Normalisations against float64 loops, and their float16 forms at the edges of float16."""

import numpy as np
import pytest
from umbel.errors import GraphError


def rms_norm(x, eps):
    return np.array([row / np.sqrt(np.mean(row**2) + eps) for row in x])


def layer_norm(x, eps):
    return np.array([(row - row.mean()) / np.sqrt(row.var() + eps) for row in x])


FORMULAS = {"rms_norm": rms_norm, "norm": layer_norm}


def rows(rng, n):
    """Rows at every scale that float16 can hold, plain, with an outlier, all equal, zero."""
    plain = rng.standard_normal((6, n))
    x = plain * np.array([1e-4, 1e-2, 1, 30, 1e3, 1.2e4])[:, None]
    outlier = rng.standard_normal((2, n)) * np.array([0.5, 20])[:, None]
    outlier[:, n // 3] = 6e4
    large = np.sign(plain[:2]) * 6e4
    x = np.concatenate((x, outlier, large, np.zeros((1, n))))
    return x.clip(-6.5e4, 6.5e4).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("n", [1, 48, 4096])
def test_norms(ops, rng, name, n):
    """Reference and float32 decomposition agree with the formula on rows of every scale."""
    x = rows(rng, n)
    for row in x:
        expected = FORMULAS[name](row[None].astype(np.float64), 1e-6)
        assert ops.nmse(expected, ops.reference(name, row[None], eps=1e-6)) < 1e-10
        assert ops.nmse(expected, ops.decomposed(name, row[None], eps=1e-6)) < 1e-10


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("n", [48, 576, 4096])
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-12])
def test_norms_in_f16(ops, rng, name, n, eps):
    """In float16 no row overflows or vanishes: the error is that of rounding."""
    for row in rows(rng, n):
        expected = FORMULAS[name](row[None].astype(np.float64), eps)
        actual = ops.decomposed(name, row[None], compute="f16", eps=eps)
        assert ops.nmse(expected, actual) < 4e-6


def test_weight_and_bias(ops, normal):
    """Weight and bias come after the normalisation."""
    x, w, b = normal(3, 16), normal(16), normal(16)
    expected = layer_norm(x.astype(np.float64), 1e-5) * w + b
    assert ops.nmse(expected, ops.reference("norm", x, w, b, eps=1e-5)) < 1e-12
    assert ops.nmse(expected, ops.decomposed("norm", x, w, b, eps=1e-5)) < 1e-12
    assert ops.nmse(expected - b, ops.decomposed("norm", x, w, eps=1e-5)) < 1e-12
    expected = rms_norm(x.astype(np.float64), 1e-5) * w
    assert ops.nmse(expected, ops.reference("rms_norm", x, w, eps=1e-5)) < 1e-12
    assert ops.nmse(expected, ops.decomposed("rms_norm", x, w, eps=1e-5)) < 1e-12


def test_heads(ops, normal):
    """Only the last axis is normalised, and input need not be contiguous."""
    x, w = normal(5, 3, 8).transpose(1, 0, 2), normal(8)
    flat = rms_norm(x.reshape(15, 8).astype(np.float64), 1e-6).reshape(x.shape) * w
    assert ops.nmse(flat, ops.reference("rms_norm", x, w, eps=1e-6)) < 1e-12


def test_zero_sized(ops):
    """No rows, no result; rows of nothing do not divide by nothing."""
    for shape in ((0, 4), (4, 0)):
        for name in FORMULAS:
            assert ops.reference(name, np.zeros(shape, np.float32), eps=1e-6).shape == shape


def test_refused(ops, normal):
    """A weight of another length is refused with both shapes; so is one too many."""
    with pytest.raises(GraphError, match="rms_norm") as caught:
        ops.reference("rms_norm", normal(2, 8), normal(7), eps=1e-6)
    assert caught.value.got == "[2, 8] f32, [7] f32"
    with pytest.raises(GraphError, match="rms_norm"):
        ops.reference("rms_norm", normal(2, 8), normal(8), normal(8), eps=1e-6)
