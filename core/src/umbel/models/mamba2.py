"""Mamba 2: the state space as heads with one decay each.

"Transformers are SSMs" (arXiv 2405.21060).
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta
from umbel.models.layers import convolve, scan, sequences, split


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    x = b.embed()
    for i in range(b.hparams.n_layer):
        x = b.add(x, _mixer(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), meta))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


def _mixer(b: ModelBuilder, i: int, x: Tensor, meta: Meta) -> Tensor:
    p, inner = f"blk.{i}.", meta.int("ssm.inner_size")
    kernel = meta.int("ssm.conv_kernel", least=1)
    n_head, size = meta.int("ssm.time_step_rank", least=1), meta.int("ssm.state_size")
    groups = meta.int("ssm.group_count", 1, least=1)
    n, s, t = b.step.n, b.step.sequences, b.step.tokens
    width = inner + 2 * groups * size  # x, B and C go through the convolution together
    x = b.linear(x, p + "ssm_in", inner + width + n_head)
    z, x, dt = split(b, x, (inner, width, n_head))
    dt = b.add(dt, b.weight(p + "ssm_dt", (n_head,), ".bias"))
    x = convolve(b, i, sequences(b, x), b.weight(p + "ssm_conv1d", (width, kernel)))
    x = b.silu(b.add(x, b.weight(p + "ssm_conv1d", (width,), ".bias")))
    x, b_in, c_out = split(b, x, (inner, groups * size, groups * size))
    x = b.reshape(x, shape=(s, t, n_head, inner // n_head))
    y = scan(
        b,
        i,
        x,
        sequences(b, dt),
        b.weight(p + "ssm_a", (n_head, 1), suffix=""),
        b.reshape(b_in, shape=(s, t, groups, size)),
        b.reshape(c_out, shape=(s, t, groups, size)),
    )
    y = b.add(y, b.mul(x, b.weight(p + "ssm_d", (n_head, 1), suffix="")))
    y = b.swiglu(z, b.reshape(y, shape=(n, inner)))
    # Each group is normed by itself.
    norm = b.weight(p + "ssm_norm", (groups, inner // groups))
    y = b.rms_norm(b.reshape(y, shape=(n, *norm.shape)), norm, eps=b.hparams.eps)
    return b.linear(b.reshape(y, shape=(n, inner)), p + "ssm_out", b.hparams.n_embd)


ARCHITECTURE = Architecture("mamba2", build)
