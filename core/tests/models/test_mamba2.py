"""Mamba 2 with more than one group, which the oracle has not, against the plain recurrence."""

from __future__ import annotations

import numpy as np
import pytest

EMBD, INNER, HEADS, GROUPS, STATES, KERNEL, VOCAB, EPS = 16, 32, 4, 2, 8, 4, 40, 1e-5


def silu(x):
    return x / (1 + np.exp(-x))


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def keys():
    return {
        "general.architecture": "mamba2",
        "mamba2.block_count": 1,
        "mamba2.embedding_length": EMBD,
        "mamba2.ssm.conv_kernel": KERNEL,
        "mamba2.ssm.inner_size": INNER,
        "mamba2.ssm.state_size": STATES,
        "mamba2.ssm.time_step_rank": HEADS,
        "mamba2.ssm.group_count": GROUPS,
        "mamba2.attention.layer_norm_rms_epsilon": EPS,
    }


def weights():
    rng = np.random.default_rng(5)
    width = INNER + 2 * GROUPS * STATES

    def random(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    return {
        "token_embd.weight": random(VOCAB, EMBD) * 4,
        "output_norm.weight": 1 + random(EMBD),
        "blk.0.attn_norm.weight": 1 + random(EMBD),
        "blk.0.ssm_in.weight": random(INNER + width + HEADS, EMBD),
        "blk.0.ssm_conv1d.weight": random(width, KERNEL),
        "blk.0.ssm_conv1d.bias": random(width),
        "blk.0.ssm_dt.bias": random(HEADS),
        "blk.0.ssm_a": -np.exp(random(HEADS, 1)),
        "blk.0.ssm_d": random(HEADS, 1),
        "blk.0.ssm_norm.weight": 1 + random(GROUPS, INNER // GROUPS),
        "blk.0.ssm_out.weight": random(EMBD, INNER),
    }


def mixer(w, x):
    """One token after the other: x (tokens, EMBD)."""
    width, size = INNER + 2 * GROUPS * STATES, INNER // HEADS
    seen = np.zeros((KERNEL, width))
    state = np.zeros((HEADS, size, STATES))
    out = np.empty_like(x)
    for t, token in enumerate(x):
        z, xbc, dt = np.split(w["blk.0.ssm_in.weight"] @ token, [INNER, INNER + width])
        seen = np.concatenate((seen[1:], xbc[None]))
        xbc = silu((seen.T * w["blk.0.ssm_conv1d.weight"]).sum(1) + w["blk.0.ssm_conv1d.bias"])
        u, b, c = np.split(xbc, [INNER, INNER + GROUPS * STATES])
        u, b, c = u.reshape(HEADS, size), b.reshape(GROUPS, STATES), c.reshape(GROUPS, STATES)
        dt = np.log1p(np.exp(dt + w["blk.0.ssm_dt.bias"]))
        y = np.empty((HEADS, size))
        for h in range(HEADS):
            g = h * GROUPS // HEADS
            decay = np.exp(dt[h] * w["blk.0.ssm_a"][h])
            state[h] = decay * state[h] + dt[h] * np.outer(u[h], b[g])
            y[h] = state[h] @ c[g] + w["blk.0.ssm_d"][h] * u[h]
        y = (y.ravel() * silu(z)).reshape(GROUPS, -1)
        out[t] = w["blk.0.ssm_out.weight"] @ rms(y, w["blk.0.ssm_norm.weight"]).ravel()
    return out


def forward(ids):
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    x = w["token_embd.weight"][ids]
    x = x + mixer(w, rms(x, w["blk.0.attn_norm.weight"]))
    return rms(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


@pytest.mark.parametrize("way", ["whole", "one_by_one"])
def test_groups(load, write, way):
    """The heads of a group share B and C, and each group is normed by itself."""
    ids = np.random.default_rng(6).integers(0, VOCAB, 20)
    model = load(write(keys(), weights()))
    expected = forward(ids)
    assert np.abs(getattr(model, way)(ids) - expected).max() <= 1e-4 * np.abs(expected).max()
