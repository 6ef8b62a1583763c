"""Phi-3 and Phi-4-mini: llama's blocks with fused matrices, and a sliding window in all layers.

"Phi-3 Technical Report" (arXiv 2404.14219). Long contexts come as two sets of frequency factors
(LongRoPE, see `rope_factors`); Phi-4-mini turns a part of each head only.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import feed_forward, qkv, rope_factors, rotate


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    factors = rope_factors(b, rope)
    scale = hp.head_dim_k**-0.5
    x = b.embed()
    for i in range(hp.n_layer):
        q, k, v = qkv(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"))
        q, k = rotate(b, q, rope, factors), rotate(b, k, rope, factors)
        h = b.attend(i, q, k, v, scale=scale, window=hp.window, rope=rope, factors=factors)
        x = b.add(x, b.linear(h, f"blk.{i}.attn_output", hp.n_embd))
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("phi3", build)
