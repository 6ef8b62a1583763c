"""Mamba: no attention; each channel has a small state whose decay depends on the token.

"Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv 2312.00752).
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
    n, s, t = b.step.n, b.step.sequences, b.step.tokens
    x, z = split(b, b.linear(x, p + "ssm_in", 2 * inner), (inner, inner))
    x = convolve(b, i, sequences(b, x), b.weight(p + "ssm_conv1d", (inner, kernel)))
    x = b.silu(b.add(x, b.weight(p + "ssm_conv1d", (inner,), ".bias")))
    x = b.reshape(x, shape=(n, inner))
    dt, b_in, c_out = _selection(b, p, x, meta)
    # Every channel is a head of one value; all share B and C.
    y = scan(
        b,
        i,
        b.reshape(x, shape=(s, t, inner, 1)),
        sequences(b, dt),
        b.weight(p + "ssm_a", (inner, b_in.shape[1]), suffix=""),
        b.reshape(b_in, shape=(s, t, 1, b_in.shape[1])),
        b.reshape(c_out, shape=(s, t, 1, b_in.shape[1])),
    )
    skip = b.mul(x, b.weight(p + "ssm_d", (inner,), suffix=""))
    y = b.add(b.reshape(y, shape=(n, inner)), skip)
    return b.linear(b.swiglu(z, y), p + "ssm_out", b.hparams.n_embd)


def _selection(b: ModelBuilder, p: str, x: Tensor, meta: Meta) -> tuple[Tensor, Tensor, Tensor]:
    """What the token chooses: the time step (N, inner), B and C (N, state)."""
    rank, size = meta.int("ssm.time_step_rank"), meta.int("ssm.state_size")
    parts = split(b, b.linear(x, p + "ssm_x", rank + 2 * size), (rank, size, size))
    if meta.bool("ssm.dt_b_c_rms", False):  # FalconMamba
        parts = [b.rms_norm(part, eps=b.hparams.eps) for part in parts]
    return b.linear(parts[0], p + "ssm_dt", x.shape[1]), parts[1], parts[2]


ARCHITECTURE = Architecture("mamba", build)
