"""Llama and the many models that share its blocks (Mistral, SmolLM2, TinyLlama ...).

Pre-norm blocks, rotary attention with grouped keys, SwiGLU: "LLaMA: Open and Efficient
Foundation Language Models" (arXiv 2302.13971). Llama 3.1's long context comes as frequency
factors in the tensor `rope_freqs.weight`.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import feed_forward, qkv, rotate


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "norm")
    factors = b.maybe("rope_freqs", (rope.n_dims // 2,))
    scale = meta.float("attention.scale", hp.head_dim_k**-0.5)
    x = b.embed()
    for i in range(hp.n_layer):
        h = b.norm_rms(x, f"blk.{i}.attn_norm")
        q, k, v = qkv(b, i, h)
        q, k = rotate(b, q, rope, factors), rotate(b, k, rope, factors)
        h = b.attend(i, q, k, v, scale=scale, rope=rope, factors=factors)
        x = b.add(x, b.linear(h, f"blk.{i}.attn_output", hp.n_embd))
        h = b.norm_rms(x, f"blk.{i}.ffn_norm")
        x = b.add(x, feed_forward(b, i, h))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("llama", build)
