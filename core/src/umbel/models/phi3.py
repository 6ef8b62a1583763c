"""Phi-3 and Phi-4-mini: llama's blocks with fused matrices, and a sliding window in all layers.

"Phi-3 Technical Report" (arXiv 2404.14219). Long contexts come as two sets of frequency factors
(LongRoPE, see `rope_factors`); Phi-4-mini turns a part of each head only.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.builder import Architecture, ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import attention, feed_forward


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    rope = read_rope(meta, b.hparams, "neox")
    x = b.embed()
    for i in range(b.hparams.n_layer):
        h = b.norm_rms(x, f"blk.{i}.attn_norm")
        x = b.add(x, attention(b, i, h, rope, window=b.hparams.window))
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("phi3", build)
