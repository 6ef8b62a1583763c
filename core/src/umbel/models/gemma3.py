"""Gemma 3: norms before and after each block; of six layers five see a sliding window.

"Gemma 3 Technical Report" (arXiv 2503.19786). The windowed layers turn by a frequency base of
their own and without scaling.
"""

from __future__ import annotations

from umbel.graph import Tensor
from umbel.models.builder import Architecture, ModelBuilder
from umbel.models.hparams import Meta, Rope, read_rope, read_windows
from umbel.models.layers import attention, feed_forward

PERIOD = 6


def build(b: ModelBuilder, meta: Meta) -> Tensor:
    hp, norm = b.hparams, ModelBuilder.norm_rms
    wide = read_rope(meta, hp, "neox")
    local = Rope(wide.n_dims, "neox", meta.get("rope.freq_base_swa", float, 10000.0))
    # The 27B model alone (62 layers) is scaled by its width, and no key says so.
    width = hp.n_embd / max(hp.n_head[0], 1) if hp.n_layer == 62 else hp.head_dim_k
    scale = meta.get("attention.scale", float, width**-0.5)
    x = b.scale(b.embed(), s=hp.n_embd**0.5)
    for i, window in enumerate(read_windows(meta, hp, PERIOD)):
        p, rope = f"blk.{i}.", local if window else wide
        h = b.norm_rms(x, p + "attn_norm")
        h = attention(b, i, h, rope, window=window, scale=scale, norm=norm)
        x = b.add(x, b.norm_rms(h, p + "post_attention_norm"))
        h = feed_forward(b, i, b.norm_rms(x, p + "ffn_norm"), "geglu")
        x = b.add(x, b.norm_rms(h, p + "post_ffw_norm"))
    y = b.logits(b.norm_rms(b.asked(x), "output_norm"))
    cap = meta.get("final_logit_softcapping", float, 0.0)
    return b.scale(b.tanh(b.scale(y, s=1.0 / cap)), s=cap) if cap else y


ARCHITECTURE = Architecture("gemma3", build)
