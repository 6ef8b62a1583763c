"""LFM2: most layers are short gated convolutions, a few are attention as in Qwen3.

"LFM2 Technical Report" (arXiv 2511.23404). A layer with no heads for keys is a convolution.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import convolve, feed_forward, sequences, split
from umbel.models.qwen3 import attention


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    kernel = meta.int("shortconv.l_cache", least=1)
    x = b.embed()
    for i in range(hp.n_layer):
        h = b.norm_rms(x, f"blk.{i}.attn_norm")
        if hp.n_head_kv[i]:
            h = attention(b, i, h, rope, hp.window)
        else:
            h = _short_conv(b, i, h, kernel)
        x = b.add(x, h)
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "token_embd_norm"))


def _short_conv(b: ModelBuilder, i: int, x: Tensor, kernel: int) -> Tensor:
    """out(c * convolve(b * x)), where b, c and x are projections of the input."""
    p, n_embd = f"blk.{i}.shortconv.", b.hparams.n_embd
    gate_in, gate_out, x = split(b, b.linear(x, p + "in_proj", 3 * n_embd), (n_embd,) * 3)
    x = sequences(b, b.mul(gate_in, x))
    x = convolve(b, i, x, b.weight(p + "conv", (n_embd, kernel)))
    y = b.mul(gate_out, b.reshape(x, shape=gate_out.shape))
    return b.linear(y, p + "out_proj", n_embd)


ARCHITECTURE = Architecture("lfm2", build)
