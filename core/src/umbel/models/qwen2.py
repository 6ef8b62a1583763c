"""Qwen2: llama's blocks with biases on the projections of q, k and v.

"Qwen2 Technical Report" (arXiv 2407.10671).
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
        x = b.add(x, attention(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), rope))
        x = b.add(x, feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm")))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("qwen2", build)
