"""Qwen3: llama's blocks with a norm on each head of q and k; heads need not divide the width.

"Qwen3 Technical Report" (arXiv 2505.09388).
"""

from functools import partial

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, decoder, feed_forward


def build(b: ModelBuilder) -> Tensor:
    rope = read_rope(b.hparams, "neox")
    return decoder(b, partial(attention, rope=rope, norm=ModelBuilder.norm_rms), feed_forward)
