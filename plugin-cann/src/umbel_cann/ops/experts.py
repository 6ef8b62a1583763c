"""Products with the matrices of the experts that each token has chosen.

Which ones they are only the device knows. Few are copied beside each other; of more, all
experts on all tokens are less to read: of weights in float16 that is the decomposition. Of 4
and 8 bits it would cast all results to float32, and products of more columns than the operator
has would leave gaps: here only what was chosen leaves scratch memory.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops.few_bits import Weight, times, weight, words
from umbel_cann.ops.rows import gather
from umbel_cann.views import FLOAT16, INT32, KEEP, Scalar, Unsupported, View, contiguous
from umbel_cann.weights.quantised import MOST

TOUCHED = 3  # what is copied is read, written and read again
ROOM = 512 << 20  # bytes that the results of all experts may take: more tokens come in turn


def mul_mat_id(to: Lowering, node: Tensor) -> None:
    w, x, ids = node.inputs
    if w.dtype.quantised:
        _few_bits(to, node)
        return
    (experts, outs, inner), (n, own), used = w.shape, x.shape[:2], ids.shape[1]
    if n * used > experts:
        msg = f"{n} x {used} matrices would be copied, of {experts}"
        raise Unsupported(msg)
    number = to.product_type(w)
    table, index = to.dense(to.view(w)), to.dense(to.view(ids))
    chosen = to.temporary((n * used, outs * inner), table.type)
    flat = table.reshaped(experts, outs * inner)
    gather(to, flat, index.reshaped(n * used), chosen)
    rows = to.dense(to.operand(x, number)).reshaped(n * own, 1, inner)
    made = to.result(node, number)
    matrices = to.cast(chosen, number).reshaped(n * own, n * used // (n * own) * outs, inner)
    out = made.reshaped(n * own, 1, matrices.shape[1])
    to.emit("BatchMatMul", rows, matrices.turned(), out, KEEP)
    to.finish(node, made)


def _few_bits(to: Lowering, node: Tensor) -> None:
    w, x, ids = node.inputs
    index = to.dense(to.view(ids)).reshaped(ids.size)
    rows = to.dense(to.operand(x, FLOAT16)).reshaped(x.size // x.shape[2], x.shape[2])
    made, stack = to.result(node, FLOAT16), weight(to, w)
    way = _chosen if TOUCHED * ids.size <= w.shape[0] else _all
    way(to, rows, stack, w.shape[0], index, made)
    to.finish(node, made)


def _chosen(
    to: Lowering, x: View, stack: Weight, experts: int, index: View, made: View
) -> None:
    """A product for each token, with the matrices of all its experts below each other.

    Where each expert has a row of its own, all rows meet all matrices, and what belongs
    together is kept: that costs less than a launch for each.
    """
    n, used, outs = made.shape
    own = x.shape[0] // n
    if own > 1 and used * outs > MOST:  # more columns than an operator takes: one by one
        n, used, own = n * used, 1, 1
    size = used * outs
    copies = _copied(to, stack, experts, index)
    every = made.reshaped(n, size) if own == 1 else to.temporary((n * own, size), FLOAT16)
    for i in range(n):
        here = 0, i * own, i * own + own
        times(to, x.part(*here), copies.rows(i * size, i * size + size), every.part(*here))
    if own > 1:
        strides = own * size, size + outs, 1
        to.emit("InplaceCopy", made, attrs.evolve(every, shape=made.shape, strides=strides))


def _copied(to: Lowering, stack: Weight, experts: int, index: View) -> Weight:
    """Matrices (experts * out, in), those that an index (n) names: (n * out, in)."""
    count = index.size

    def taken(part: View) -> View:
        moved = part if part.type == FLOAT16 else words(part)
        table = moved.reshaped(experts, moved.size // experts)
        into = to.temporary((count, table.shape[1]), moved.type)
        gather(to, table, index, into)
        shape = part.shape[0] // experts * count, part.shape[1]
        return View(part.type, shape, contiguous(shape), into.address, 0, math.prod(shape))

    return stack.each(taken)


def _all(to: Lowering, x: View, stack: Weight, experts: int, index: View, made: View) -> None:
    """All experts on some tokens at a time, several in a product; then each token's own."""
    n, used, outs = made.shape
    own = x.shape[0] // n
    fit = (i for i in range(1, experts + 1) if experts % i == 0 and i * outs <= MOST)
    together = max(fit, default=1)
    step = max(ROOM // (own * experts * outs * 2), 1)
    for start in range(0, n, step):
        stop = min(start + step, n)
        some = x.part(0, start * own, stop * own)
        m, size = some.shape[0], together * outs
        with to.again():
            every = to.temporary((experts // together * m, size), FLOAT16)
            for i in range(experts // together):
                matrices = stack.rows(i * size, i * size + size)
                times(to, some, matrices, every.part(0, i * m, i * m + m))
            which = index.part(0, start * used, stop * used)
            places = _places(to, which, m, experts, together)
            out = made.part(0, start, stop).reshaped(which.size, outs)
            gather(to, every.reshaped(m * experts, outs), places, out)


def _places(to: Lowering, index: View, m: int, experts: int, together: int) -> View:
    """Where the results of chosen experts are: `m` rows, of so many experts at a time."""
    if together < experts:
        first = np.arange(experts) // together * m * together + np.arange(experts) % together
        table = to.constant(("expert", experts, m, together), INT32, first[:, None])
        found = to.temporary(index.shape, INT32)
        gather(to, table, index, found.reshaped(index.size, 1))
        index = found
    row = np.repeat(np.arange(m) * together, index.size // m)
    begins = to.constant(("row", index.size, m, together), INT32, row)
    places = to.temporary(index.shape, INT32)
    to.emit("Add", index, begins, Scalar(1, INT32), places)
    return places
