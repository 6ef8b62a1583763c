"""Qwen3's mixture of experts: its attention, and for each token the best few of many small
feed-forwards.

"Qwen3 Technical Report" (arXiv 2505.09388).
"""

from functools import partial

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, decoder, experts


def build(b: ModelBuilder) -> Tensor:
    rope = read_rope(b.hparams, "neox")
    mix = partial(attention, rope=rope, norm=ModelBuilder.norm_rms)
    return decoder(b, mix, experts)
