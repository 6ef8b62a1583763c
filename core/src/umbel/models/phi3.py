"""Phi-3 and Phi-4-mini: llama's blocks with fused matrices, and a sliding window in all layers.

"Phi-3 Technical Report" (arXiv 2404.14219). Long contexts come as two sets of frequency factors
(LongRoPE, see `rope_factors`); Phi-4-mini turns a part of each head only.
"""

from functools import partial

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, decoder, feed_forward


def build(b: ModelBuilder) -> Tensor:
    rope = read_rope(b.hparams, "neox")
    return decoder(b, partial(attention, rope=rope, window=b.hparams.window), feed_forward)
