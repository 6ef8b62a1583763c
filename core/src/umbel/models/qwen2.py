"""Qwen2: llama's blocks with biases on the projections of q, k and v.

"Qwen2 Technical Report" (arXiv 2407.10671).
"""

from functools import partial

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, decoder, feed_forward


def build(b: ModelBuilder) -> Tensor:
    rope = read_rope(b.hparams, "neox")
    return decoder(b, partial(attention, rope=rope), feed_forward)
