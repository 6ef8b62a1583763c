"""The pieces that architectures share: attention with a cache, feed-forward, experts, and the
convolution and scan of recurrent layers."""

from __future__ import annotations

from functools import reduce

import attrs

from umbel.errors import ModelFormatError
from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, Rope


def heads(b: ModelBuilder, x: Tensor, n: int) -> Tensor:
    """(N, n * head_dim) -> (N, n, head_dim)"""
    return b.reshape(x, shape=(x.shape[0], n, x.shape[1] // n))


def rotate(b: ModelBuilder, x: Tensor, rope: Rope, factors: Tensor | None = None) -> Tensor:
    """Rotary embedding of (N, heads, head_dim) at the step's positions."""
    return b.rope(x, b.positions, factors, **attrs.asdict(rope))


def rope_factors(b: ModelBuilder, rope: Rope) -> Tensor | None:
    """What divides each frequency, when the file has such a tensor.

    Of the two sets of a LongRoPE model (arXiv 2402.13753) the long one serves whoever asked for
    a longer context than the model was first trained with, from its first token on: keys that
    were turned by different factors do not go together.
    """
    longest = b.state.n_ctx or b.hparams.n_ctx_train
    name = "rope_factors_long" if longest > rope.n_ctx_orig else "rope_factors_short"
    shape = (rope.n_dims // 2,)
    return b.maybe(name, shape) or b.maybe("rope_freqs", shape)


def qkv(b: ModelBuilder, i: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The projections of layer i: q (N, H, hd), k (N, Hkv, hd), v (N, Hkv, hv).

    A file may hold them as one matrix `attn_qkv`.
    """
    hp, p = b.hparams, f"blk.{i}."
    n, n_kv = hp.n_head[i], hp.n_head_kv[i]
    check_heads(b, n, n_kv)
    sizes = (n * hp.head_dim_k, n_kv * hp.head_dim_k, n_kv * hp.head_dim_v)
    if p + "attn_qkv.weight" in b.tensors:
        parts = split(b, b.linear(x, p + "attn_qkv", sum(sizes)), sizes)
    else:
        names = ("attn_q", "attn_k", "attn_v")
        parts = [b.linear(x, p + name, size) for name, size in zip(names, sizes, strict=True)]
    q, k, v = parts
    return heads(b, q, n), heads(b, k, n_kv), heads(b, v, n_kv)


def check_heads(b: ModelBuilder, n: int, n_kv: int) -> None:
    """Each head of the keys serves the same number of heads of the queries."""
    if not n_kv or not n or n % n_kv:
        msg = "the heads of the attention do not fit together"
        raise ModelFormatError(
            msg,
            where=b.where,
            expected="attention.head_count a multiple of attention.head_count_kv",
            got=f"{n} and {n_kv}",
        )


def split(b: ModelBuilder, x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """Neighbouring slices of the last axis, of these sizes."""
    axis, start, parts = len(x.shape) - 1, 0, []
    for size in sizes:
        part = b.view(x, axis=axis, start=start, stop=start + size)
        parts.append(part if part.is_contiguous else b.cont(part))
        start += size
    return parts


def feed_forward(b: ModelBuilder, i: int, x: Tensor, glu: str = "swiglu") -> Tensor:
    """down(glu(gate(x), up(x))): (N, n_embd) -> (N, n_embd)

    A file may hold gate and up as one matrix, `ffn_up`.
    """
    hp, p = b.hparams, f"blk.{i}."
    n_ff = hp.n_ff[i]
    if p + "ffn_gate.weight" in b.tensors:
        gate, up = b.linear(x, p + "ffn_gate", n_ff), b.linear(x, p + "ffn_up", n_ff)
    else:
        gate, up = split(b, b.linear(x, p + "ffn_up", 2 * n_ff), (n_ff, n_ff))
    return b.linear(b.apply(b.ops[glu], gate, up), p + "ffn_down", hp.n_embd)


def plain_feed_forward(b: ModelBuilder, i: int, x: Tensor, activation: str) -> Tensor:
    """down(activation(up(x))): (N, n_embd) -> (N, n_embd)"""
    hp, p = b.hparams, f"blk.{i}."
    up = b.linear(x, p + "ffn_up", hp.n_ff[i])
    return b.linear(b.apply(b.ops[activation], up), p + "ffn_down", hp.n_embd)


def experts(b: ModelBuilder, i: int, x: Tensor, meta: Meta, *, normalised: bool) -> Tensor:
    """A mixture of experts (arXiv 1701.06538): (N, n_embd) -> (N, n_embd)

    The router's softmax is over all experts; the `used` best ones of each token are computed
    and weighted by it, `normalised` to a sum of one.
    """
    hp, p = b.hparams, f"blk.{i}."
    count, used = meta.int("expert_count"), meta.int("expert_used_count", least=1)
    if used > count:
        meta.refuse("expert_used_count", f"at most expert_count ({count})", used)
    n, n_embd = x.shape
    n_ff = meta.int("expert_feed_forward_length", hp.n_ff[i] // used)
    probs = b.soft_max(b.linear(x, p + "ffn_gate_inp", count))  # (N, count)
    ids = b.top_k(probs, k=used)  # (N, used)
    weights = b.get_rows(b.reshape(probs, shape=(n, count, 1)), ids)  # (N, used, 1)
    if normalised:
        weights = b.reshape(weights, shape=(n, used))
        weights = b.div(weights, b.sum_rows(weights))
        weights = b.reshape(weights, shape=(n, used, 1))
    x = b.reshape(x, shape=(n, 1, n_embd))
    gate = b.mul_mat_id(b.weight(p + "ffn_gate_exps", (count, n_ff, n_embd)), x, ids)
    up = b.mul_mat_id(b.weight(p + "ffn_up_exps", (count, n_ff, n_embd)), x, ids)
    down = b.weight(p + "ffn_down_exps", (count, n_embd, n_ff))
    y = b.mul(b.mul_mat_id(down, b.swiglu(gate, up), ids), weights)  # (N, used, n_embd)
    parts = [b.view(y, axis=1, start=e, stop=e + 1) for e in range(used)]
    return b.reshape(reduce(b.add, parts), shape=(n, n_embd))


def sequences(b: ModelBuilder, x: Tensor) -> Tensor:
    """(N, n) -> (S, T, n)"""
    return b.reshape(x, shape=(b.step.sequences, b.step.tokens, x.shape[1]))


def convolve(b: ModelBuilder, i: int, x: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution over each channel: (S, T, C) by a kernel (C, K) -> (S, T, C).

    The state is the last K - 1 inputs of each channel.
    """
    s, t, c = x.shape
    before = kernel.shape[1] - 1
    state = b.recurrent(f"conv.{i}", c * before)
    old = b.reshape(b.get_rows(state, b.state_in), shape=(s, c, before))
    inputs = b.concat(old, b.cont(b.transpose(x)), axis=2)  # (S, C, K-1+T)
    last = b.cont(b.view(inputs, axis=2, start=t, stop=t + before))
    b.write_state(state, b.reshape(last, shape=(s, c * before)))
    return b.ssm_conv(inputs, kernel)


def scan(
    b: ModelBuilder, i: int, x: Tensor, dt: Tensor, a: Tensor, b_in: Tensor, c_out: Tensor
) -> Tensor:
    """The selective scan of a state space: x (S, T, H, P), dt (S, T, H) -> (S, T, H, P).

    B and C are (S, T, groups, N); the state of a sequence is (H, P, N).
    """
    s, _, h, p = x.shape
    size = h * p * b_in.shape[3]
    state = b.recurrent(f"ssm.{i}", size)
    slots = b.reshape(state, shape=(b.state.slots, h, p, b_in.shape[3]))
    y = b.ssm_scan(slots, x, dt, a, b_in, c_out, b.state_in)  # flat: the result, the states
    new = b.view(y, axis=0, start=x.size, stop=x.size + s * size)
    b.write_state(state, b.reshape(new, shape=(s, size)))
    return b.reshape(b.view(y, axis=0, start=0, stop=x.size), shape=x.shape)
