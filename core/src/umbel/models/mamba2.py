"""Mamba 2: the state space as heads with one decay each.

"Transformers are SSMs" (arXiv 2405.21060).
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
    n_head, size = meta.count("ssm.time_step_rank", least=1), meta.count("ssm.state_size")
    groups = meta.count("ssm.group_count", 1, least=1)
    sizes = inner, groups * size, groups * size  # x, B and C go through one convolution
    x = b.linear(x, p + "ssm_in", inner + sum(sizes) + n_head)
    z, x, dt = split(b, x, inner, sum(sizes), n_head)
    dt = b.add(dt, b.weight(p + "ssm_dt", (n_head,), ".bias"))
    x, b_in, c_out = split(b, b.silu(convolve(b, i, x, p + "ssm_conv1d", width)), *sizes)
    x = heads(b, x, n_head)
    a = b.weight(p + "ssm_a", (n_head, 1), suffix="")
    y = scan(b, i, x, dt, a, heads(b, b_in, groups), heads(b, c_out, groups))
    y = b.add(y, b.mul(x, b.weight(p + "ssm_d", (n_head, 1), suffix="")))
    y = heads(b, b.swiglu(z, b.reshape(y, shape=z.shape)), groups)
    # Each group is normed by itself.
    norm = b.weight(p + "ssm_norm", (groups, inner // groups))
    y = b.reshape(b.rms_norm(y, norm, eps=b.hparams.eps), shape=z.shape)
    return b.linear(y, p + "ssm_out", b.hparams.n_embd)
