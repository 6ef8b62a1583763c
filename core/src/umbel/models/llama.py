"""Llama and the many models that share its blocks (Mistral, SmolLM2, TinyLlama ...).

Pre-norm blocks, rotary attention with grouped keys, SwiGLU: "LLaMA: Open and Efficient
Foundation Language Models" (arXiv 2302.13971). Llama 3.1's long context comes as frequency
factors in the tensor `rope_freqs.weight`.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.builder import Architecture, ModelBuilder
from umbel.models.hparams import Meta, read_rope
from umbel.models.layers import attention, experts, feed_forward


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    rope = read_rope(meta, b.hparams, "norm")
    x = b.embed()
    for i in range(b.hparams.n_layer):
        x = b.add(x, attention(b, i, b.norm_rms(x, f"blk.{i}.attn_norm"), rope))
        h = b.norm_rms(x, f"blk.{i}.ffn_norm")
        mixture = f"blk.{i}.ffn_gate_inp.weight" in b.tensors
        x = b.add(x, experts(b, i, h, meta) if mixture else feed_forward(b, i, h))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


ARCHITECTURE = Architecture("llama", build)
