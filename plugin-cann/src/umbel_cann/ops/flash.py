"""Attention by one operator, where a chip has it.

It computes in float16. Where values are float32 it is used for a cache of float16, if products
with weights of float16 are all that reads the result: then q alone is rounded more than in the
other form, and by no more than that cache is. Heads stand behind the tokens in what it takes,
as they do in the core's tensors before the axes are exchanged: so nothing is copied. Keys and
values come as gathered rows; through a table of blocks they could come without that.
"""

from __future__ import annotations

from umbel.graph import MASKED, Role, Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.views import BOOL, FLOAT16, Scalar, View, Views

OPERATOR = "FusedInferAttentionScoreV2"
_MASKS = ("mask", "mask:")  # the inputs that hold 0 and MASKED alone, all the same to all heads
_ALL = (1 << 31) - 1  # preTokens, nextTokens: no band
_ROWS = 2  # innerPrecise: precise, and a row that is all hidden is zero
_WIDEST, _HEADS, _SHARING = 512, 256, 64  # what it takes at most


def whole(to: Lowering, node: Tensor) -> bool:
    """Whether it computes this node."""
    q, k, v, *more = node.inputs
    _, heads, _, width = q.shape
    few = width <= _WIDEST and heads <= _HEADS and heads // k.shape[1] <= _SHARING
    fits = few and width % 16 == 0 and v.shape[3] == width
    plain = not (node.attrs.get("max_bias") or node.attrs.get("logit_softcap"))
    known = not more or (len(more) == 1 and _hides(more[0]))
    half = node in to.rounded and all(to.known(t).type == FLOAT16 for t in (k, v))
    half = half or node.dtype.name == "f16"
    return fits and plain and known and half and to.why_not(OPERATOR) is None


def _hides(mask: Tensor) -> bool:
    return mask.role is Role.INPUT and mask.name.startswith(_MASKS)


def attend(to: Lowering, node: Tensor) -> None:
    """flash_attn_ext"""
    q, k, v, *mask = node.inputs
    query, *rows = (to.dense(to.operand(t, FLOAT16).permuted(0, 2, 1, 3)) for t in (q, k, v))
    keys, values = (Views((view,)) for view in rows)
    hidden = _hidden(to, mask[0]) if mask else None
    made = to.result(node, FLOAT16)
    heads, scale = q.shape[1], node.attrs["scale"]
    how = (heads, scale, _ALL, _ALL, b"BSND", k.shape[1], 0, _ROWS, 0, 0, False, 0, 0)
    to.emit(OPERATOR, query, keys, values, None, hidden, *(None,) * 19, *how, made, None)
    to.finish(node, made)


def _hidden(to: Lowering, mask: Tensor) -> View:
    """Whether a mask hides: made once for all layers."""

    def fill(out: View) -> None:
        given = to.view(mask)
        turned = to.temporary(given.shape, given.type)
        to.emit("Muls", given, Scalar(-1.0), turned)
        to.emit("GtScalar", turned, Scalar(-MASKED / 2), out)

    return to.once((mask, BOOL), mask.shape, BOOL, fill)
