"""Qwen3's mixture of experts: its attention, and for each token the best few of many small
feed-forwards.

"Qwen3 Technical Report" (arXiv 2505.09388).
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import experts
from umbel.models.qwen3 import attention


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    rope = read_rope(meta, hp, "neox")
    normalised = meta.bool("expert_weights_norm", True)
    x = b.embed()
    for i in range(hp.n_layer):
        x = b.add(x, attention(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), rope))
        h = b.norm_rms(x, f"blk.{i}.ffn_norm")
        x = b.add(x, experts(b, i, h, meta, normalised=normalised))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("qwen3moe", build)
