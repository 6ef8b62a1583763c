"""Mamba: no attention; each channel has a small state whose decay depends on the token.

"Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv 2312.00752).
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.layers import convolve, decoder, heads, scan, split


def build(b: ModelBuilder) -> Tensor:
    return decoder(b, _mixer)


def _mixer(b: ModelBuilder, i: int, x: Tensor) -> Tensor:
    p, meta = f"blk.{i}.", b.hparams.meta
    inner = meta.count("ssm.inner_size", least=1)
    width = meta.count("ssm.conv_kernel", least=1)
    x, z = split(b, b.linear(x, p + "ssm_in", 2 * inner), inner, inner)
    x = b.silu(convolve(b, i, x, p + "ssm_conv1d", width))
    dt, b_in, c_out = _selection(b, p, x)
    a = b.weight(p + "ssm_a", (inner, b_in.shape[1]), suffix="")
    # Every channel is a head of one value; all share B and C.
    y = scan(b, i, heads(b, x, inner), dt, a, heads(b, b_in, 1), heads(b, c_out, 1))
    skip = b.mul(x, b.weight(p + "ssm_d", (inner,), suffix=""))
    y = b.add(b.reshape(y, shape=x.shape), skip)
    return b.linear(b.swiglu(z, y), p + "ssm_out", b.hparams.n_embd)


def _selection(b: ModelBuilder, p: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the token chooses: the time step (N, inner), B and C (N, state)."""
    meta = b.hparams.meta
    rank, size = meta.count("ssm.time_step_rank"), meta.count("ssm.state_size")
    parts = split(b, b.linear(x, p + "ssm_x", rank + 2 * size), rank, size, size)
    if meta.get("ssm.dt_b_c_rms", bool, False):  # FalconMamba
        parts = [b.rms_norm(part, eps=b.hparams.eps) for part in parts]
    return b.linear(parts[0], p + "ssm_dt", x.shape[1]), parts[1], parts[2]
