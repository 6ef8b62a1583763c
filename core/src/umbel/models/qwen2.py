"""Qwen2: llama's blocks with biases on the projections of q, k and v.

"Qwen2 Technical Report" (arXiv 2407.10671).
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import feed_forward, qkv, rotate


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    x = b.embed()
    for i in range(hp.n_layer):
        h = b.norm_rms(x, f"blk.{i}.attn_norm")
        q, k, v = qkv(b, i, h)
        q, k = rotate(b, q, rope), rotate(b, k, rope)
        h = b.attend(i, q, k, v, scale=hp.head_dim_k**-0.5, rope=rope)
        x = b.add(x, b.linear(h, f"blk.{i}.attn_output", hp.n_embd))
        h = b.norm_rms(x, f"blk.{i}.ffn_norm")
        x = b.add(x, feed_forward(b, i, h))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("qwen2", build)
