"""Convolution and scan against loops over every index."""

import math

import numpy as np
import pytest
from umbel.errors import GraphError


def conv(sx, kernel):
    seqs, channels, length = sx.shape
    width = kernel.shape[1]
    out = np.zeros((seqs, length - width + 1, channels))
    for s, t, c in np.ndindex(out.shape):
        out[s, t, c] = sum(float(sx[s, c, t + k]) * float(kernel[c, k]) for k in range(width))
    return out


@pytest.mark.parametrize("tokens", [0, 1, 6])
@pytest.mark.parametrize("width", [1, 3, 4])
def test_conv(ops, normal, tokens, width):
    """Each channel by its own kernel, oldest first."""
    sx, kernel = normal(2, 5, width - 1 + tokens), normal(5, width)
    expected = conv(sx, kernel)
    assert ops.nmse(expected, ops.reference("ssm_conv", sx, kernel)) < 1e-12
    assert ops.nmse(expected, ops.decomposed("ssm_conv", sx, kernel)) < 1e-12
    half = [x.astype(np.float16).astype(np.float32) for x in (sx, kernel)]
    actual = ops.decomposed("ssm_conv", *half, compute="f16")
    assert ops.nmse(conv(*half), actual) < 2e-6


def test_conv_refused(ops, normal):
    """One kernel per channel, and as many inputs as the kernel is wide."""
    for sx, kernel in (((2, 5, 6), (4, 4)), ((2, 5, 2), (5, 4)), ((5, 6), (5, 4))):
        with pytest.raises(GraphError, match="ssm_conv"):
            ops.reference("ssm_conv", normal(*sx), normal(*kernel))


def scan(state, x, dt, a, b, c, ids):
    """h = exp(dt A) h + dt B x; y = C h; dt = softplus(dt); B and C by group."""
    (seqs, tokens, heads, size), groups, n = x.shape, b.shape[2], b.shape[3]
    y, final = np.zeros(x.shape), np.zeros((seqs, heads, size, n))
    for s, h, p in np.ndindex(seqs, heads, size):
        values = [float(v) for v in state[ids[s], h, p]]
        g = h // (heads // groups)
        for t in range(tokens):
            raw = float(dt[s, t, h])
            step = max(raw, 0) + math.log1p(math.exp(-abs(raw)))
            for i in range(n):
                decay = math.exp(step * float(a[h, i if a.shape[1] > 1 else 0]))
                values[i] = values[i] * decay + step * float(b[s, t, g, i] * x[s, t, h, p])
            y[s, t, h, p] = sum(v * float(c[s, t, g, i]) for i, v in enumerate(values))
        final[s, h, p] = values
    return np.concatenate((y.ravel(), final.ravel()))


CASES = {  # H, P, N, G, whether A has one value per head
    "mamba": (6, 1, 4, 1, False),
    "mamba2": (4, 3, 5, 2, True),
    "mamba2 one group": (4, 3, 5, 1, True),
}


def inputs(normal, case, tokens):
    heads, size, n, groups, single = CASES[case]
    return [
        normal(5, heads, size, n),
        normal(3, tokens, heads, size),
        2 * normal(3, tokens, heads) - 2,
        -np.exp(normal(heads, 1 if single else n)),
        normal(3, tokens, groups, n),
        normal(3, tokens, groups, n),
        np.array([4, 0, 0], np.int32),
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_scan(ops, normal, case, tokens):
    """Outputs and final states of both Mambas; sequences start from their own slot."""
    args = inputs(normal, case, tokens)
    expected = scan(*args)
    assert ops.nmse(expected, ops.reference("ssm_scan", *args)) < 1e-11
    assert ops.nmse(expected, ops.decomposed("ssm_scan", *args)) < 1e-11
    half = [x.astype(np.float16).astype(np.float32) for x in args[:-1]]
    actual = ops.decomposed("ssm_scan", *half, args[-1], compute="f16")
    assert ops.nmse(scan(*half, args[-1]), actual) < 4e-6


def test_scan_in_pieces(ops, normal):
    """Scanning on from the final states gives the same as one scan."""
    state, x, dt, a, b, c, ids = inputs(normal, "mamba2", 5)
    whole = ops.reference("ssm_scan", state, x, dt, a, b, c, ids)
    first = ops.reference(
        "ssm_scan", state, *(v[:, :2] for v in (x, dt)), a, b[:, :2], c[:, :2], ids
    )
    between = first[x[:, :2].size :].reshape(3, *state.shape[1:])
    rest = ops.reference(
        "ssm_scan",
        between,
        x[:, 2:],
        dt[:, 2:],
        a,
        b[:, 2:],
        c[:, 2:],
        np.arange(3, dtype="i4"),
    )
    n = x[:, 2:].size
    assert ops.nmse(whole[x.size :], rest[n:]) < 1e-13
    assert (
        ops.nmse(whole[: x.size].reshape(x.shape)[:, 2:], rest[:n].reshape(3, 3, 4, 3)) < 1e-13
    )


def test_scan_leaves_the_state_alone(ops, normal):
    """The old states are read, never written: a failed step changes nothing."""
    args = inputs(normal, "mamba2", 2)
    before = args[0].copy()
    ops.reference("ssm_scan", *args)
    assert before.tolist() == args[0].tolist()


def test_long_steps_in_f16(ops, normal):
    """A large time step forgets the state; it makes no NaN."""
    args = inputs(normal, "mamba2", 2)
    args[2][:] = 1e3
    args[3][:] = -100
    args[1] *= 1e-2
    actual = ops.decomposed("ssm_scan", *args, compute="f16")
    assert ops.nmse(scan(*args), actual) < 4e-6


@pytest.mark.parametrize("i", range(7))
def test_scan_refused(ops, normal, i):
    """Each input that does not fit is refused."""
    args = inputs(normal, "mamba2", 2)
    args[i] = args[i][..., :-1].copy()
    with pytest.raises(GraphError, match="ssm_scan"):
        ops.reference("ssm_scan", *args)
