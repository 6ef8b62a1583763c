"""Qwen3: llama's blocks with a norm on each head of q and k; heads need not divide the width.

"Qwen3 Technical Report" (arXiv 2505.09388).
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, Rope, read_rope
from umbel.models.layers import feed_forward, qkv, rotate


def attention(b: ModelBuilder, i: int, x: Tensor, rope: Rope, window: int = 0) -> Tensor:
    """Attention whose queries and keys are normed before they are turned."""
    hp, p = b.hparams, f"blk.{i}."
    q, k, v = qkv(b, i, x)
    q = rotate(b, b.norm_rms(q, p + "attn_q_norm"), rope)
    k = rotate(b, b.norm_rms(k, p + "attn_k_norm"), rope)
    h = b.attend(i, q, k, v, scale=hp.head_dim_k**-0.5, window=window, rope=rope)
    return b.linear(h, p + "attn_output", hp.n_embd)


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    x = b.embed()
    for i in range(hp.n_layer):
        x = b.add(x, attention(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), rope))
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("qwen3", build)
