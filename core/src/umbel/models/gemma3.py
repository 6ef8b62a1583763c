"""Gemma 3: norms before and after each block; of six layers five see a sliding window.

"Gemma 3 Technical Report" (arXiv 2503.19786). The windowed layers turn by a frequency base of
their own and without scaling.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.base import Architecture
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import Hparams, Meta, Rope, read_rope, read_windows
from umbel.models.layers import feed_forward, qkv, rotate

PERIOD = 6


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp = b.hparams
    wide = read_rope(meta, hp, "neox")
    local = Rope(wide.n_dims, "neox", meta.float("rope.freq_base_swa", 10000.0))
    x = b.scale(b.embed(), s=hp.n_embd**0.5)
    for i, window in enumerate(read_windows(meta, hp, PERIOD)):
        p, rope = f"blk.{i}.", local if window else wide
        q, k, v = qkv(b, i, b.norm_rms(x, p + "attn_norm"))
        q = rotate(b, b.norm_rms(q, p + "attn_q_norm"), rope)
        k = rotate(b, b.norm_rms(k, p + "attn_k_norm"), rope)
        h = b.attend(i, q, k, v, scale=_scale(meta, hp), window=window, rope=rope)
        h = b.linear(h, p + "attn_output", hp.n_embd)
        x = b.add(x, b.norm_rms(h, p + "post_attention_norm"))
        h = feed_forward(b, i, b.norm_rms(x, p + "ffn_norm"), "geglu")
        x = b.add(x, b.norm_rms(h, p + "post_ffw_norm"))
    y = b.logits(b.norm_rms(b.asked(x), "output_norm"))
    return b.soft_cap(y, meta.float("final_logit_softcapping", 0.0))


def _scale(meta: Meta, hp: Hparams) -> float:
    # The 27B model alone (62 layers) is scaled by its width, and no key says so.
    width = hp.n_embd // hp.n_head[0] if hp.n_layer == 62 else hp.head_dim_k
    return meta.float("attention.scale", width**-0.5)


ARCHITECTURE = Architecture("gemma3", build)
