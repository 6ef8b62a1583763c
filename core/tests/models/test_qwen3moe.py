"""The mixture of experts against a forward pass written as the paper says it."""

from __future__ import annotations

import numpy as np
import pytest


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def turned(x, base):
    """Rotary embedding of (tokens, heads, head_dim), halves turned against each other."""
    half = x.shape[2] // 2
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def attention(w, x, heads, kv_heads, head_dim, base, eps):
    q = (x @ w("attn_q").T).reshape(len(x), heads, head_dim)
    k = (x @ w("attn_k").T).reshape(len(x), kv_heads, head_dim)
    v = (x @ w("attn_v").T).reshape(len(x), kv_heads, head_dim)
    q, k = (
        turned(rms(t, w(n), eps), base) for t, n in ((q, "attn_q_norm"), (k, "attn_k_norm"))
    )
    out = np.empty_like(q)
    for h in range(heads):
        g = h * kv_heads // heads
        for t in range(len(x)):
            scores = k[: t + 1, g] @ q[t, h] / np.sqrt(head_dim)
            share = np.exp(scores - scores.max())
            out[t, h] = share @ v[: t + 1, g] / share.sum()
    return out.reshape(len(x), -1) @ w("attn_output").T


def mixture(w, x, used, normalised):
    out = np.zeros_like(x)
    for t, token in enumerate(x):
        scores = np.exp(w("ffn_gate_inp") @ token)
        shares = scores / scores.sum()
        best = np.argsort(-shares)[:used]
        total = shares[best].sum() if normalised else 1
        for e in best:
            hidden = silu(w("ffn_gate_exps")[e] @ token) * (w("ffn_up_exps")[e] @ token)
            out[t] += shares[e] / total * (w("ffn_down_exps")[e] @ hidden)
    return out


def forward(file, ids, normalised=True):
    get = {k: np.asarray(file.array(k), np.float64) for k in file.tensors}
    eps = file.get("qwen3moe.attention.layer_norm_rms_epsilon", float)
    base = file.get("qwen3moe.rope.freq_base", float)
    used = file.get("qwen3moe.expert_used_count", int)
    x = get["token_embd.weight"][ids]
    for i in range(file.get("qwen3moe.block_count", int)):

        def w(name, i=i):
            return get[f"blk.{i}.{name}.weight"]

        x = x + attention(w, rms(x, w("attn_norm"), eps), 4, 2, 16, base, eps)
        x = x + mixture(w, rms(x, w("ffn_norm"), eps), used, normalised)
    return rms(x, get["output_norm.weight"], eps) @ get["output.weight"].T


def test_the_plain_forward_is_the_oracles(load, oracle):
    """The plain forward pass of this file agrees with the independent implementation."""
    data = oracle("qwen3moe")
    plain = forward(load("qwen3moe").definition.file, data["ids"])
    assert np.abs(plain - data["ref"]).max() <= 1e-5


@pytest.mark.parametrize("normalised", [True, False])
def test_expert_weights_norm(load, oracle, rewrite, normalised):
    """The weights of the chosen experts sum to one, unless the file says no."""
    ids = oracle("qwen3moe")["ids"]
    model = load(rewrite("qwen3moe", {"expert_weights_norm": normalised}))
    expected = forward(model.definition.file, ids, normalised)
    assert np.abs(model.whole(ids) - expected).max() <= 1e-4


def test_all_experts_used(load, oracle, rewrite):
    """With every expert chosen the sum runs over all of them."""
    ids = oracle("qwen3moe")["ids"]
    model = load(rewrite("qwen3moe", {"expert_used_count": 6}))
    expected = forward(model.definition.file, ids)
    assert np.abs(model.whole(ids) - expected).max() <= 1e-4
