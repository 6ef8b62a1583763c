"""Products with the matrices of the experts that each token has chosen."""

from __future__ import annotations

from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops.rows import gather
from umbel_cann.views import KEEP, Unsupported


def mul_mat_id(to: Lowering, node: Tensor) -> None:
    """Where fewer are chosen than there are: their matrices, side by side, in one product.

    Of more, all experts on all tokens are less to read: that is the decomposition.
    """
    w, x, ids = node.inputs
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
