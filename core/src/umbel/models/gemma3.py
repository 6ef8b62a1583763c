"""Gemma 3: norms before and after each block; of six layers five see a sliding window.

"Gemma 3 Technical Report" (arXiv 2503.19786). The windowed layers turn by a frequency base of
their own and without scaling.
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope, read_windows
from umbel.models.layers import attention, feed_forward


def build(b: ModelBuilder) -> Tensor:
    hp, meta = b.hparams, b.hparams.meta
    layers = read_windows(hp, read_rope(hp, "neox"), period=6, freq_base=10000.0)
    # The 27B model alone (62 layers) is scaled by its width, and no key says so.
    width = hp.n_embd / max(hp.n_head[0], 1) if hp.n_layer == 62 else hp.head_dim_k
    scale = meta.get("attention.scale", float, width**-0.5)
    x = b.scale(b.embed(), s=hp.n_embd**0.5)
    for i, (window, rope) in enumerate(layers):
        p = f"blk.{i}."
        h = b.norm_rms(x, p + "attn_norm")
        h = attention(b, i, h, rope, window=window, scale=scale, norm=ModelBuilder.norm_rms)
        x = b.add(x, b.norm_rms(h, p + "post_attention_norm"))
        h = feed_forward(b, i, b.norm_rms(x, p + "ffn_norm"), "geglu")
        x = b.add(x, b.norm_rms(h, p + "post_ffw_norm"))
    y = b.logits(b.norm_rms(b.asked(x), "output_norm"))
    cap = meta.get("final_logit_softcapping", float, 0.0)
    return b.scale(b.tanh(b.scale(y, s=1.0 / cap)), s=cap) if cap else y
