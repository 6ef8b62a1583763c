"""OLMo 2 and 3: norms after each block instead of before it, and over all of q and of k.

"2 OLMo 2 Furious" (arXiv 2501.00656). OLMo 3 adds a sliding window in three of four layers,
whose positions are never scaled.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Meta, Rope, read_rope, read_windows
from umbel.models.layers import feed_forward, heads, qkv, rotate

PERIOD = 4


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    wide = read_rope(meta, hp, "neox")
    local = Rope(wide.n_dims, "neox", meta.float("rope.freq_base_swa", wide.freq_base))
    x = b.embed()
    for i, window in enumerate(read_windows(meta, hp, PERIOD)):
        p, rope = f"blk.{i}.", local if window else wide
        q, k, v = qkv(b, i, x)
        q = rotate(b, _norm_all(b, q, p + "attn_q_norm"), rope)
        k = rotate(b, _norm_all(b, k, p + "attn_k_norm"), rope)
        h = b.attend(i, q, k, v, scale=hp.head_dim_k**-0.5, window=window, rope=rope)
        h = b.linear(h, p + "attn_output", hp.n_embd)
        x = b.add(x, b.norm_rms(h, p + "post_attention_norm"))
        x = b.add(x, b.norm_rms(feed_forward(b, i, x), p + "post_ffw_norm"))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


def _norm_all(b: ModelBuilder, x: Tensor, stem: str) -> Tensor:
    """rms_norm of (N, H, hd) over all heads of a token at once."""
    n, h, hd = x.shape
    return heads(b, b.norm_rms(b.reshape(x, shape=(n, h * hd)), stem), h)


ARCHITECTURE = Architecture("olmo2", build)
