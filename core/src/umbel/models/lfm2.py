"""LFM2: most layers are short gated convolutions, a few are attention as in Qwen3.

"LFM2 Technical Report" (arXiv 2511.23404). A layer with no heads for keys is a convolution.
"""

from umbel.graph import Tensor
from umbel.models.builder import ModelBuilder
from umbel.models.hparams import read_rope
from umbel.models.layers import attention, convolve, decoder, feed_forward, split


def build(b: ModelBuilder) -> Tensor:
    hp = b.hparams
    rope = read_rope(hp, "neox")
    width = hp.meta.count("shortconv.l_cache", least=1)

    def mix(b: ModelBuilder, i: int, x: Tensor) -> Tensor:
        if not hp.n_head_kv[i]:
            return _short_conv(b, i, x, width)
        return attention(b, i, x, rope, window=hp.window, norm=ModelBuilder.norm_rms)

    return decoder(b, mix, feed_forward, last="token_embd_norm")


def _short_conv(b: ModelBuilder, i: int, x: Tensor, width: int) -> Tensor:
    """out(c * convolve(b * x)), where b, c and x are projections of the input."""
    p, n = f"blk.{i}.shortconv.", b.hparams.n_embd
    gate_in, gate_out, x = split(b, b.linear(x, p + "in_proj", 3 * n), n, n, n)
    x = convolve(b, i, b.mul(gate_in, x), p + "conv", width)
    return b.linear(b.mul(gate_out, x), p + "out_proj", n)
