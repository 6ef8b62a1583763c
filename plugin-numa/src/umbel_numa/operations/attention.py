"""Attention, soft maximum, rope, and rows of caches."""

import math
import struct
from collections.abc import Callable, Sequence

from umbel.graph import Role, Tensor
from umbel.ops.rope import Rope

Attributes = tuple[Sequence[int], Sequence[float]]

CHUNK = 128  # positions, as UN_CHUNK
_LANES = 16  # what rows are filled up to, as UN_LANES
_FEW = 16  # rows of a KV head whose chunks may go to several threads
_MOST = 32 << 20  # bytes that their results may take


def attention(node: Tensor) -> Sequence[float]:
    """The floats of an attention step."""
    return [node.attrs.get(name, 0.0) for name in ("scale", "max_bias", "logit_softcap")]


def partial_bytes(node: Tensor, threads: int) -> int:
    """What a kv_attention leaves for kv_merge; 0 where no thread needs a part of a sequence.

    Of each row and chunk the weighted values and two numbers more.
    """
    (seqs, tokens, heads, _), (_, _, kv, hv) = node.inputs[0].shape, node.inputs[2].shape
    cells = node.inputs[6].shape[1]
    if threads == 1 or seqs >= 4 * threads or tokens * heads > _FEW * kv or cells <= 2 * CHUNK:
        return 0
    rows, width = seqs * tokens * heads, -(-hv // _LANES) * _LANES + _LANES
    size = rows * (cells // CHUNK + 2) * width * 4
    return size if size <= _MOST else 0


def rope_table(node: Tensor) -> tuple[int, ...]:
    """The integers of a rope_cos_sin step but the second, which says where the table lies."""
    how = Rope(**node.attrs)
    size, low, high = how.attn_factor, 0, 1
    if how.ext_factor:
        size *= 1 + 0.1 * math.log(1 / how.freq_scale)
        low = max(0, math.floor(how.turning(how.beta_fast)))
        high = min(how.n_dims - 1, math.ceil(how.turning(how.beta_slow)))
    reals = (how.freq_base, how.freq_scale, how.ext_factor, size)
    return how.n_dims, *struct.unpack("<4q", struct.pack("<4d", *reals)), low, high


def _rope_cos_sin(node: Tensor) -> Attributes:
    first, *others = rope_table(node)
    return (first, 0, *others), ()


def _soft_max(node: Tensor) -> Attributes:
    return (), (node.attrs.get("max_bias", 0.0),)


def _flash_attn_ext(node: Tensor) -> Attributes:
    return (), attention(node)


def _readable(node: Tensor) -> str | None:
    """Keys and values are floats or a cache; weights are made floats when they are stored."""
    for t in node.inputs[1:3]:
        if t.dtype.quantised and t.dtype.name != "q8_0" and t.storage.role is not Role.WEIGHT:
            return f"its attention reads f32, f16, bf16 and q8_0, not {t.dtype}"
    return None


ATTRIBUTES: dict[str, Callable[[Tensor], Attributes]] = {
    "flash_attn_ext": _flash_attn_ext,
    "rope_cos_sin": _rope_cos_sin,
    "soft_max": _soft_max,
}
CHECKS: dict[str, Callable[[Tensor], str | None]] = {"flash_attn_ext": _readable}
