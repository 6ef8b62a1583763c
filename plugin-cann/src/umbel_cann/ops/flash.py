"""Attention by one operator, where a chip has it.

It computes in float16. Where values are float32 it is used for a cache of float16, if products
with weights of float16 are all that reads the result: then q alone is rounded more than in the
other form, and by no more than that cache is. Heads stand behind the tokens in what it takes,
as they do in the core's tensors before the axes are exchanged: so nothing is copied. Keys and
values come as gathered rows, or in blocks where they lie (`blocks.py`).

A mask that hides is booleans for several tokens, and for a single one, which is another kernel
of the vendor's, what is added to its scores: booleans are there said to be lost beyond 512 keys
(vllm-ascend, issue 15503). Nor can that kernel make a row zero that is all hidden. There are
none but those of padding sequences, which nobody reads: a token sees itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.graph import MASKED, Role, Tensor

from umbel_cann.chips import ATTENTION
from umbel_cann.lowering import Lowering
from umbel_cann.memory import BLOCK
from umbel_cann.ops import blocks
from umbel_cann.views import BOOL, FLOAT16, Argument, Numbers, Scalar, View, Views

if TYPE_CHECKING:
    from umbel_cann.ops.fusion import Reads

_MASKS = ("mask", "mask:")  # the inputs that hold 0 and MASKED alone, all the same to all heads
_ALL = (1 << 31) - 1  # preTokens, nextTokens: no band
_PRECISE, _ROWS = 0, 2  # innerPrecise: also, a row that is all hidden is zero
_WIDEST, _HEADS, _SHARING = 512, 256, 64  # what it takes at most


def whole(to: Lowering, node: Tensor) -> bool:
    """Whether it computes this node."""
    half = all(to.known(t).type == FLOAT16 for t in node.inputs[1:3])
    return fits(to, node) and (half or node.dtype.name == "f16")


def fits(to: Lowering, node: Tensor) -> bool:
    """Whether it does so of a cache of float16."""
    q, k, v, *more = node.inputs
    _, heads, _, width = q.shape
    few = width <= _WIDEST and heads <= _HEADS and heads // k.shape[1] <= _SHARING
    sized = few and width % 16 == 0 and v.shape[3] == width
    plain = not (node.attrs.get("max_bias") or node.attrs.get("logit_softcap"))
    known = not more or (len(more) == 1 and _hides(more[0]))
    half = node in to.rounded or node.dtype.name == "f16"
    return sized and plain and known and half and to.why_not(ATTENTION) is None


def _hides(mask: Tensor) -> bool:
    return mask.role is Role.INPUT and mask.name.startswith(_MASKS)


def blocked(reads: Reads, to: Lowering) -> dict[Tensor, tuple[Tensor, Tensor]]:
    """Nodes that need no gathered rows, and their caches of keys and values."""
    found = {}
    for node in reads.nodes:
        if node.op and node.op.name == "flash_attn_ext" and len(node.inputs) == 4:
            caches = (blocks.cache_of(reads, to, node, t) for t in node.inputs[1:3])
            keys, values = caches
            if keys is not None and values is not None and fits(to, node):
                found[node] = keys, values
    return found


def attend(to: Lowering, node: Tensor) -> None:
    """flash_attn_ext"""
    q, k, v, *mask = node.inputs
    sequences, heads, tokens, _ = q.shape
    query = to.dense(to.operand(q, FLOAT16).permuted(0, 2, 1, 3))
    lengths: Argument = None
    table, size, precise = None, 0, _ROWS
    if node in to.blocks:
        keys, values = (blocks.of(to, cache) for cache in to.blocks[node])
        lengths, size = Numbers((k.shape[2],) * sequences), BLOCK
        table = to.laid.table if to.laid else None
    else:
        turned = (to.operand(t, FLOAT16).permuted(0, 2, 1, 3) for t in (k, v))
        keys, values = (to.dense(view) for view in turned)
    added = hidden = None
    if tokens == 1:
        added, precise = _added(to, node) if mask else None, _PRECISE
    elif mask:
        hidden = _hidden(to, node)
    made = to.result(node, FLOAT16)
    given = (query, Views((keys,)), Views((values,)), added, hidden, None, lengths)
    scale, layout = node.attrs["scale"], b"BSND"
    how = (heads, scale, _ALL, _ALL, layout, k.shape[1], 0, precise, size, 0, False, 0, 0)
    to.emit(ATTENTION, *given, *(None,) * 7, table, *(None,) * 9, *how, made, None)
    to.finish(node, made)


def _mask(to: Lowering, node: Tensor) -> View:
    """(S, 1, T, L), in the order of the keys."""
    return blocks.ordered(to, node.inputs[3]) if node in to.blocks else to.view(node.inputs[3])


def _hidden(to: Lowering, node: Tensor) -> View:
    """Whether a mask hides: made once for all layers."""
    mask = node.inputs[3]

    def fill(out: View) -> None:
        given = _mask(to, node)
        turned = to.temporary(given.shape, given.type)
        to.emit("Muls", given, Scalar(-1.0), turned)
        to.emit("GtScalar", turned, Scalar(-MASKED / 2), out)

    return to.once((mask, BOOL, node in to.blocks), mask.shape, BOOL, fill)


def _added(to: Lowering, node: Tensor) -> View:
    """A mask for each head: made once for all layers with as many."""
    mask, heads = node.inputs[3], node.inputs[0].shape[1]

    def fill(out: View) -> None:
        to.emit("InplaceCopy", out, to.cast(_mask(to, node), FLOAT16))

    shape = (mask.shape[0], heads, *mask.shape[2:])
    return to.once((mask, heads, node in to.blocks), shape, FLOAT16, fill)
