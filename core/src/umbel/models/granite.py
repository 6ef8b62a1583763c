"""Granite 3 and 4 (dense): llama's blocks with four fixed scales, for the embedding, the
attention, the residuals and the logits.

"Power Scheduler" (arXiv 2408.13359), whose muP scaling they come from. `rope.scaling.finetuned`
false stands for a model without positions.
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, feed_forward


def build(b: ModelBuilder) -> Tensor:
    meta = b.hparams.meta
    positions = meta.get("rope.scaling.finetuned", bool, True)
    rope = read_rope(b.hparams, "norm") if positions else None
    residual = meta.get("residual_scale", float, 1.0)
    divisor = meta.get("logit_scale", float)
    if not divisor:
        meta.refuse("logit_scale", "a number that can be divided by", divisor)
    x = b.scale(b.embed(), s=meta.get("embedding_scale", float, 1.0))
    for i in range(b.hparams.n_layer):
        h = attention(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), rope)
        x = b.add(x, b.scale(h, s=residual))
        h = feed_forward(b, i, b.norm_rms(x, f"blk.{i}.ffn_norm"))
        x = b.add(x, b.scale(h, s=residual))
    y = b.logits(b.norm_rms(b.asked(x), "output_norm"))
    return b.scale(y, s=1.0 / divisor)
