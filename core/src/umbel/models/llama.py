"""Llama and the many models that share its blocks (Mistral, SmolLM2, TinyLlama ...).

Pre-norm blocks, rotary attention with grouped keys, SwiGLU: "LLaMA: Open and Efficient
Foundation Language Models" (arXiv 2302.13971). Llama 3.1's long context comes as frequency
factors in the tensor `rope_freqs.weight`.
"""

from functools import partial

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, decoder, experts, feed_forward


def build(b: ModelBuilder) -> Tensor:
    rope = read_rope(b.hparams, "norm")
    mixture = b.hparams.meta.count("expert_count", 0) > 0
    feed = experts if mixture else feed_forward
    return decoder(b, partial(attention, rope=rope), feed)
