"""Granite 3 and 4 (dense): llama's blocks with four fixed scales, for the embedding, the
attention, the residuals and the logits.

"Power Scheduler" (arXiv 2408.13359), whose muP scaling they come from. `rope.scaling.finetuned`
false stands for a model without positions.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import feed_forward, qkv, rope_factors, rotate


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "norm") if meta.bool("rope.scaling.finetuned", True) else None
    factors = rope_factors(b, rope) if rope else None
    scale = meta.float("attention.scale", hp.head_dim_k**-0.5)
    residual = meta.float("residual_scale", 1.0)
    x = b.scale(b.embed(), s=meta.float("embedding_scale", 1.0))
    for i in range(hp.n_layer):
        q, k, v = qkv(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"))
        if rope:
            q, k = rotate(b, q, rope, factors), rotate(b, k, rope, factors)
        h = b.attend(i, q, k, v, scale=scale, rope=rope, factors=factors)
        h = b.linear(h, f"blk.{i}.attn_output", hp.n_embd)
        x = b.add(x, b.scale(h, s=residual))
        h = feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm"))
        x = b.add(x, b.scale(h, s=residual))
    y = b.logits(b.norm_rms(b.asked(x), "output_norm"))
    return b.scale(y, s=1.0 / meta.float("logit_scale"))


ARCHITECTURE = Architecture("granite", build)
