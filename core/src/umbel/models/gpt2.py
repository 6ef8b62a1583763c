"""GPT-2: learned positions, LayerNorm, a feed-forward with GELU.

"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019).
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.layers import attention, plain_feed_forward


def build(b: ModelBuilder) -> Tensor:
    x = b.add(b.embed(), b.embed_positions())
    for i in range(b.hparams.n_layer):
        x = b.add(x, attention(b, i, b.norm_layer(x, f"blk.{i}.attn_norm")))
        h = b.norm_layer(x, f"blk.{i}.ffn_norm")
        x = b.add(x, plain_feed_forward(b, i, h, "gelu"))
    return b.logits(b.norm_layer(b.asked(x), "output_norm"))
