"""LFM2: most layers are short gated convolutions, a few are attention as in Qwen3.

"LFM2 Technical Report" (arXiv 2511.23404). A layer with no heads for keys is a convolution.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.builder import Architecture, ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import attention, convolve, feed_forward, split


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    width = meta.count("shortconv.l_cache", least=1)
    x = b.embed()
    for i in range(hp.n_layer):
        h = b.norm_rms(x, f"blk.{i}.attn_norm")
        if hp.n_head_kv[i]:
            h = attention(b, i, h, rope, window=hp.window, norm=ModelBuilder.norm_rms)
        else:
            h = _short_conv(b, i, h, width)
        x = b.add(x, h)
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "token_embd_norm"))


def _short_conv(b: ModelBuilder, i: int, x: Tensor, width: int) -> Tensor:
    """out(c * convolve(b * x)), where b, c and x are projections of the input."""
    p, n = f"blk.{i}.shortconv.", b.hparams.n_embd
    gate_in, gate_out, x = split(b, b.linear(x, p + "in_proj", 3 * n), n, n, n)
    x = convolve(b, i, b.mul(gate_in, x), p + "conv", width)
    return b.linear(b.mul(gate_out, x), p + "out_proj", n)


ARCHITECTURE = Architecture("lfm2", build)
