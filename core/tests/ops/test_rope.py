"""Rotary embedding against complex numbers, and YaRN against its paper."""

import cmath
import math

import numpy as np
import pytest
from umbel.errors import GraphError

POSITIONS = np.array([0, 1, 7, 1000, 131071], np.int32)
MODES = ("norm", "neox")
YARN = {"freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.1, "n_ctx_orig": 64}


def turn(x, angles, mode, size=1.0):
    """Pairs as complex numbers, each times exp(i angle)."""
    out = x.astype(np.float64)
    half = angles.shape[1]
    for t, h, i in np.ndindex(*x.shape[:2], half):
        a, b = (i, i + half) if mode == "neox" else (2 * i, 2 * i + 1)
        z = complex(x[t, h, a], x[t, h, b]) * cmath.rect(size, angles[t, i])
        out[t, h, a], out[t, h, b] = z.real, z.imag
    return out


def plain_angles(positions, n_dims, base=10000.0, scale=1.0):
    powers = [base ** (-2 * i / n_dims) for i in range(n_dims // 2)]
    return np.array([[int(p) * scale * f for f in powers] for p in positions])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_dims", [8, 6, 2])
def test_rope(ops, normal, mode, n_dims):
    """Turned pairs, plain or scaled; dimensions beyond n_dims pass through."""
    x = normal(5, 3, 8)
    for scale in (1.0, 0.25):
        expected = turn(x, plain_angles(POSITIONS, n_dims, 5e5, scale), mode)
        how = {"mode": mode, "n_dims": n_dims, "freq_base": 5e5, "freq_scale": scale}
        assert ops.nmse(expected, ops.reference("rope", x, POSITIONS, **how)) < 1e-13
        assert ops.nmse(expected, ops.decomposed("rope", x, POSITIONS, **how)) < 1e-13
        assert x[..., n_dims:].tolist() == expected[..., n_dims:].tolist()


@pytest.mark.parametrize("mode", MODES)
def test_factors(ops, normal, mode):
    """Factors divide the frequencies; all ones are like none, others are not."""
    x, ones = normal(5, 2, 8), np.ones(4, np.float32)
    factors = np.array([1, 2, 8, 0.5], np.float32)
    how = {"mode": mode, "n_dims": 8, "freq_base": 1e4}
    expected = turn(x, plain_angles(POSITIONS, 8) / factors, mode)
    assert ops.nmse(expected, ops.reference("rope", x, POSITIONS, factors, **how)) < 1e-13
    assert ops.nmse(expected, ops.decomposed("rope", x, POSITIONS, factors, **how)) < 1e-13
    none = ops.reference("rope", x, POSITIONS, **how)
    assert none.tolist() == ops.reference("rope", x, POSITIONS, ones, **how).tolist()
    assert ops.nmse(none, ops.reference("rope", x, POSITIONS, 8 * ones, **how)) > 0.1


def yarn_angles(positions, n_dims, base, scale, ext, fast, slow, n_ctx):
    """YaRN, section 3.2: pairs that turn often are kept, slow ones interpolated."""
    angles = np.zeros((len(positions), n_dims // 2))

    def pair_of(turns):
        return n_dims * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_of(fast)), 0)
    high = min(math.ceil(pair_of(slow)), n_dims - 1)
    for i in range(n_dims // 2):
        ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        frequency = base ** (-2 * i / n_dims)
        kept = (1 - ramp) * ext
        angles[:, i] = positions * (frequency * kept + frequency * scale * (1 - kept))
    return angles


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("betas", [(32.0, 1.0), (8.0, 0.25)])
@pytest.mark.parametrize(("ext", "n_ctx"), [(1.0, 64), (0.5, 64), (1.0, 10**6), (1.0, 4)])
def test_yarn(ops, normal, mode, betas, ext, n_ctx):
    """YaRN's mixture of frequencies and its growth of the attention."""
    x, (fast, slow) = normal(5, 2, 32), betas
    how = {**YARN, "ext_factor": ext, "mode": mode, "n_dims": 32, "freq_base": 1e4}
    how |= {"beta_fast": fast, "beta_slow": slow, "n_ctx_orig": n_ctx}
    angles = yarn_angles(POSITIONS, 32, 1e4, 0.25, ext, fast, slow, n_ctx)
    expected = turn(x, angles, mode, 1.1 * (1 + 0.1 * math.log(4)))
    assert ops.nmse(expected, ops.reference("rope", x, POSITIONS, **how)) < 1e-13
    assert ops.nmse(expected, ops.decomposed("rope", x, POSITIONS, **how)) < 1e-13


def test_yarn_keeps_fast_and_scales_slow_pairs(ops):
    """The first pair turns as without scaling, the last as with all of it."""
    how = {"n_dims": 64, "freq_base": 1e4, "freq_scale": 0.25}
    plain = ops.reference("rope_cos_sin", POSITIONS, n_dims=64, freq_base=1e4)
    scaled = ops.reference("rope_cos_sin", POSITIONS, **how)
    yarn = ops.reference("rope_cos_sin", POSITIONS, **how, ext_factor=1.0, n_ctx_orig=4096)
    yarn = yarn / (1 + 0.1 * math.log(4))
    np.testing.assert_allclose(yarn[:, :3, 0], plain[:, :3, 0], atol=1e-6)
    np.testing.assert_allclose(yarn[:, :3, -1], scaled[:, :3, -1], atol=1e-6)


def test_layers_share_one_table(ops):
    """Queries and keys of all layers decompose to one table of cosines and sines."""
    from umbel.gguf.types import F32, I32
    from umbel.graph import Builder, Role
    from umbel.ops import OPS

    build = Builder(OPS)
    positions = build.leaf(Role.INPUT, "positions", (3,), I32)
    for i in range(4):
        x = build.leaf(Role.INPUT, f"x{i}", (3, 2, 8), F32)
        ops.lower(build, build.rope(x, positions, mode="norm", n_dims=8, freq_base=1e4), F32)
    assert [n.op.name for n in build.nodes].count("rope_cos_sin") == 1


@pytest.mark.parametrize("mode", MODES)
def test_f16(ops, mode):
    """Values at the edge of float16 turn without overflow where the result fits."""
    x = np.full((5, 2, 8), 4e4, np.float32)
    how = {"mode": mode, "n_dims": 8, "freq_base": 1e4}
    expected = ops.reference("rope", x, POSITIONS, **how)
    assert ops.nmse(expected, ops.decomposed("rope", x, POSITIONS, compute="f16", **how)) < 1e-6


def test_zero_sized_and_views(ops, normal):
    """No tokens; and input that is a permuted view."""
    how = {"mode": "norm", "n_dims": 8, "freq_base": 1e4}
    assert ops.reference("rope", normal(0, 2, 8), POSITIONS[:0], **how).shape == (0, 2, 8)
    x = normal(2, 5, 8)
    expected = ops.reference("rope", x.swapaxes(0, 1).copy(), POSITIONS, **how)
    assert (
        ops.reference("rope", x.swapaxes(0, 1), POSITIONS, **how).tolist() == expected.tolist()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "glm"},
        {"n_dims": 7},
        {"n_dims": 10},
        {"n_dims": 0},
        {"freq_base": 0.0},
        {"freq_scale": 0.0},
        {"ext_factor": 1.0, "n_ctx_orig": 0},
    ],
)
def test_refused(ops, normal, wrong):
    """Settings that cannot be meant are refused when the graph is built."""
    how = {"mode": "norm", "n_dims": 8, "freq_base": 1e4, **wrong}
    with pytest.raises(GraphError, match="rope"):
        ops.reference("rope", normal(5, 2, 8), POSITIONS, **how)


def test_wrong_inputs_refused(ops, normal):
    """One position per token, one factor per pair."""
    how = {"mode": "norm", "n_dims": 8, "freq_base": 1e4}
    with pytest.raises(GraphError, match="rope"):
        ops.reference("rope", normal(4, 2, 8), POSITIONS, **how)
    with pytest.raises(GraphError, match="rope"):
        ops.reference("rope", normal(5, 2, 8), POSITIONS, normal(8), **how)
