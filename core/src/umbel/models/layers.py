"""The pieces that architectures share: the blocks of most decoders, attention with a cache,
feed-forward, experts, and the convolution and scan of recurrent layers."""

from collections.abc import Callable
from functools import reduce

from umbel.errors import ModelFormatError
from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Rope
from umbel.ops.shape import contiguous_copy

Block = Callable[[ModelBuilder, int, Tensor], Tensor]  # layer i: (N, n_embd) -> (N, n_embd)


def decoder(
    b: ModelBuilder, mix: Block, feed: Block | None = None, *, last: str = "output_norm"
) -> Tensor:
    """The logits of pre-norm layers: each block adds to x what it makes of x, normed.

    `mix` moves values between tokens, `feed` is for each token alone; `last` names the norm
    after all layers.
    """
    x = b.embed()
    for i in range(b.hparams.n_layer):
        x = b.add(x, mix(b, i, b.norm_rms(x, f"blk.{i}.attn_norm")))
        if feed is not None:
            x = b.add(x, feed(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), last))


def attention(
    b: ModelBuilder,
    i: int,
    x: Tensor,
    rope: Rope | None = None,
    *,
    window: int = 0,
    scale: float | None = None,
    norm: Callable[[ModelBuilder, Tensor, str], Tensor] | None = None,
) -> Tensor:
    """Causal attention of layer i: (N, n_embd) -> (N, n_embd)

    `norm` is what q and k (N, heads, head_dim) go through before `rope` turns them.
    """
    p = f"blk.{i}."
    q, k, v = qkv(b, i, x)
    if norm is not None:
        q, k = norm(b, q, p + "attn_q_norm"), norm(b, k, p + "attn_k_norm")
    scale = b.hparams.scale if scale is None else scale
    h = b.attend(i, q, k, v, scale=scale, window=window, rope=rope)
    return b.linear(h, p + "attn_output", b.hparams.n_embd)


def qkv(b: ModelBuilder, i: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The projections of layer i: q (N, H, hd), k (N, Hkv, hd), v (N, Hkv, hv).

    A file may hold them as one matrix `attn_qkv`.
    """
    hp, p = b.hparams, f"blk.{i}."
    n, n_kv = hp.n_head[i], hp.n_head_kv[i]
    if not n_kv or not n or n % n_kv:
        msg = "the heads of the attention do not fit together"
        expected = "attention.head_count a multiple of attention.head_count_kv"
        raise ModelFormatError(msg, where=b.file.path, expected=expected, got=f"{n} and {n_kv}")
    sizes = (n * hp.head_dim_k, n_kv * hp.head_dim_k, n_kv * hp.head_dim_v)
    if p + "attn_qkv.weight" in b.file.tensors:
        q, k, v = split(b, b.linear(x, p + "attn_qkv", sum(sizes)), *sizes)
    else:
        named = zip("qkv", sizes, strict=True)
        q, k, v = (b.linear(x, f"{p}attn_{name}", size) for name, size in named)
    return heads(b, q, n), heads(b, k, n_kv), heads(b, v, n_kv)


def heads(b: ModelBuilder, x: Tensor, n: int) -> Tensor:
    """(N, n * head_dim) -> (N, n, head_dim)"""
    return b.reshape(x, shape=(x.shape[0], n, x.shape[1] // n))


def split(b: ModelBuilder, x: Tensor, *sizes: int) -> list[Tensor]:
    """The columns of (N, sum of sizes): (N, size) each."""
    start, parts = 0, []
    for size in sizes:
        part = b.view(x, axis=1, start=start, stop=start + size)
        parts.append(contiguous_copy(b, part))
        start += size
    return parts


def feed_forward(b: ModelBuilder, i: int, x: Tensor, glu: str = "swiglu") -> Tensor:
    """down(glu(gate(x), up(x))): (N, n_embd) -> (N, n_embd)

    A file may hold gate and up as one matrix, `ffn_up`.
    """
    p, n_ff = f"blk.{i}.", b.hparams.n_ff[i]
    if p + "ffn_gate.weight" in b.file.tensors:
        gate, up = b.linear(x, p + "ffn_gate", n_ff), b.linear(x, p + "ffn_up", n_ff)
    else:
        gate, up = split(b, b.linear(x, p + "ffn_up", 2 * n_ff), n_ff, n_ff)
    return b.linear(b.apply(b.ops[glu], gate, up), p + "ffn_down", b.hparams.n_embd)


def plain_feed_forward(b: ModelBuilder, i: int, x: Tensor, activation: str) -> Tensor:
    """down(activation(up(x))): (N, n_embd) -> (N, n_embd)"""
    up = b.linear(x, f"blk.{i}.ffn_up", b.hparams.n_ff[i])
    return b.linear(b.apply(b.ops[activation], up), f"blk.{i}.ffn_down", b.hparams.n_embd)


def experts(b: ModelBuilder, i: int, x: Tensor) -> Tensor:
    """A mixture of experts (arXiv 1701.06538): (N, n_embd) -> (N, n_embd)

    The router's softmax is over all experts; the `used` best ones of each token are computed
    and weighted by it, normalised to a sum of one.
    """
    p, meta = f"blk.{i}.", b.hparams.meta
    count, used = meta.count("expert_count"), meta.count("expert_used_count", least=1)
    if used > count:
        meta.refuse("expert_used_count", f"at most expert_count ({count})", used)
    n, n_embd = x.shape
    n_ff = meta.count("expert_feed_forward_length", b.hparams.n_ff[i])
    probs = b.soft_max(b.linear(x, p + "ffn_gate_inp", count))  # (N, count)
    ids = b.top_k(probs, k=used)  # (N, used)
    weights = b.get_rows(b.reshape(probs, shape=(n, count, 1)), ids)  # (N, used, 1)
    if meta.get("expert_weights_norm", bool, True):
        total = b.sum_rows(b.reshape(weights, shape=(n, used)))
        weights = b.div(weights, b.reshape(total, shape=(n, 1, 1)))
    x = b.reshape(x, shape=(n, 1, n_embd))
    gate = b.mul_mat_id(b.weight(p + "ffn_gate_exps", (count, n_ff, n_embd)), x, ids)
    up = b.mul_mat_id(b.weight(p + "ffn_up_exps", (count, n_ff, n_embd)), x, ids)
    down = b.weight(p + "ffn_down_exps", (count, n_embd, n_ff))
    y = b.mul(b.mul_mat_id(down, b.swiglu(gate, up), ids), weights)  # (N, used, n_embd)
    parts = [b.view(y, axis=1, start=e, stop=e + 1) for e in range(used)]
    return b.reshape(reduce(b.add, parts), shape=(n, n_embd))


def convolve(b: ModelBuilder, i: int, x: Tensor, stem: str, width: int) -> Tensor:
    """Causal convolution over each channel: (N, C) -> (N, C), plus the bias when there is one.

    The state is the last `width` - 1 inputs of each channel.
    """
    c, s, t, before = x.shape[1], b.step.sequences, b.step.tokens, width - 1
    state = b.recurrent(f"conv.{i}", c * before)
    old = b.reshape(b.get_rows(state, b.given("state_in")), shape=(s, c, before))
    new = contiguous_copy(b, b.permute(b.sequences(x), axes=(0, 2, 1)))
    inputs = b.concat(old, new, axis=2)  # (S, C, before + T)
    b.write_state(state, b.cont(b.view(inputs, axis=2, start=t, stop=t + before)))
    y = b.reshape(b.ssm_conv(inputs, b.weight(stem, (c, width))), shape=x.shape)
    bias = b.maybe(stem, (c,), ".bias")
    return y if bias is None else b.add(y, bias)


def scan(
    b: ModelBuilder, i: int, x: Tensor, dt: Tensor, a: Tensor, b_in: Tensor, c_out: Tensor
) -> Tensor:
    """The selective scan of a state space: x (N, H, P), dt (N, H) -> (N, H, P).

    B and C are (N, groups, n); the state of a sequence is (H, P, n).
    """
    (_, h, p), n = x.shape, b_in.shape[2]
    state = b.recurrent(f"ssm.{i}", h * p * n)
    slots = b.reshape(state, shape=(b.state.slots, h, p, n))
    x, dt, b_in, c_out = map(b.sequences, (x, dt, b_in, c_out))
    y = b.ssm_scan(slots, x, dt, a, b_in, c_out, b.given("state_in"))  # the result, the states
    b.write_state(state, b.view(y, axis=0, start=x.size, stop=y.size))
    return b.reshape(b.view(y, axis=0, start=0, stop=x.size), shape=(b.step.n, h, p))
