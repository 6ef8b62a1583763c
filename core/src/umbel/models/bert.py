"""BERT: an encoder; every token sees all of its text, and norms follow the residuals.

"BERT: Pre-training of Deep Bidirectional Transformers" (arXiv 1810.04805). The result is the
hidden state of every token. All tokens are of the first type ("sentence A").
"""

import numpy as np

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.layers import plain_feed_forward, qkv

POOLED = True  # the result is the hidden states of all rows, no logits


def build(b: ModelBuilder) -> Tensor:
    hp = b.hparams
    types = b.file.get("tokenizer.ggml.token_type_count", int, 2)
    first = b.const(np.zeros(1, np.int32), "token_type")
    x = b.add(b.embed(), b.embed_positions())
    x = b.add(x, b.lookup("token_types", types, first))
    x = b.norm_layer(x, "token_embd_norm")
    for i in range(hp.n_layer):
        q, k, v = qkv(b, i, x)
        h = b.attend_within(q, k, v, scale=hp.scale)
        x = b.add(x, b.linear(h, f"blk.{i}.attn_output", hp.n_embd))
        x = b.norm_layer(x, f"blk.{i}.attn_output_norm")
        x = b.add(x, plain_feed_forward(b, i, x, "gelu_erf"))
        x = b.norm_layer(x, f"blk.{i}.layer_output_norm")
    return x
