"""GPT-2: learned positions, LayerNorm, a feed-forward with GELU.

"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019).
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta
from umbel.models.layers import plain_feed_forward, qkv


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    x = b.add(b.embed(), b.embed_positions())
    for i in range(hp.n_layer):
        q, k, v = qkv(b, i, b.norm_layer(x, f"blk.{i}.attn_norm"))
        h = b.attend(i, q, k, v, scale=hp.head_dim_k**-0.5)
        x = b.add(x, b.linear(h, f"blk.{i}.attn_output", hp.n_embd))
        h = b.norm_layer(x, f"blk.{i}.ffn_norm")
        x = b.add(x, plain_feed_forward(b, i, h, "gelu"))
    return b.logits(b.norm_layer(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("gpt2", build)
