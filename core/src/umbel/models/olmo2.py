"""OLMo 2 and 3: norms after each block instead of before it, and over all of q and of k.

"2 OLMo 2 Furious" (arXiv 2501.00656). OLMo 3 adds a sliding window in three of four layers,
whose positions are never scaled.
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope, read_windows
from umbel.models.layers import attention, feed_forward, heads


def build(b: ModelBuilder) -> Tensor:
    wide = read_rope(b.hparams, "neox")
    layers = read_windows(b.hparams, wide, period=4, freq_base=wide.freq_base)
    x = b.embed()
    for i, (window, rope) in enumerate(layers):
        p = f"blk.{i}."
        h = attention(b, i, x, rope, window=window, norm=_norm_all)
        x = b.add(x, b.norm_rms(h, p + "post_attention_norm"))
        x = b.add(x, b.norm_rms(feed_forward(b, i, x), p + "post_ffw_norm"))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


def _norm_all(b: ModelBuilder, x: Tensor, stem: str) -> Tensor:
    """rms_norm of (N, H, hd) over all heads of a token at once."""
    n, h, hd = x.shape
    return heads(b, b.norm_rms(b.reshape(x, shape=(n, h * hd)), stem), h)
