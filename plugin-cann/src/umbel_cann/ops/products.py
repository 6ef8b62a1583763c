"""Matrix products: w (..., out, in) and x (..., n, in) to x w^T (..., n, out)."""

from __future__ import annotations

import math

import attrs
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops.few_bits import product
from umbel_cann.views import KEEP, ONE, View


def mul_mat(to: Lowering, node: Tensor) -> None:
    w, x = node.inputs
    if w.dtype.quantised:
        product(to, node)
        return
    number = to.product_type(w)
    if len(w.shape) == 2:
        flat, turned = rows_of(to, x, number), factors(to, to.operand(w, number))
        made = to.result(node, number)
        multiply(to, "Mm", flat, turned, made.reshaped(flat.shape[0], turned.shape[-1]))
    else:
        rows = to.dense(to.operand(x, number))
        turned = factors(to, to.operand(w, number))
        made = to.result(node, number)
        batches(to, rows, turned, made)
    to.finish(node, made)


def rows_of(to: Lowering, x: Tensor, number: int) -> View:
    """x (..., n) as rows below each other, without gaps."""
    rows = to.dense(to.operand(x, number))
    return rows.reshaped(rows.size // rows.shape[-1], rows.shape[-1])


def factors(to: Lowering, w: View) -> View:
    """w^T (..., in, out), plain or as a transposed window of what is plain."""
    turned = w.turned()
    if w.dense or turned.dense:
        return turned
    # the copy keeps the order in which values lie
    return to.dense(w).turned() if w.strides[-1] == 1 else to.dense(turned)


def multiply(to: Lowering, operator: str, x: View, turned: View, out: View) -> None:
    """x (..., n, in) times w^T (..., in, out): an Mm or a BatchMatMul, or a sum of some where
    the chip fails on rows that long."""
    (n, inner), axis = x.shape[-2:], len(x.shape) - 1
    most = to.chip.columns(operator, n)
    if not 0 < most < inner:
        to.emit(operator, x, turned, out, KEEP)
        return
    more = to.temporary(out.shape, out.type)
    for start in range(0, inner, most):
        stop = min(start + most, inner)
        with to.again():
            some = to.dense(x.part(axis, start, stop))
            by = factors(to, turned.part(axis - 1, start, stop).turned())
            to.emit(operator, some, by, more if start else out, KEEP)
        if start:
            to.emit("InplaceAdd", out, more, ONE)


def batches(to: Lowering, x: View, turned: View, out: View) -> None:
    """Each matrix of w serves as many neighbours in x: their rows stand below each other.

    Where that is so on an outer axis too, there is a product for each of its entries.
    """
    (n, inner), outs = x.shape[-2:], turned.shape[-1]
    lead = turned.shape[:-2]
    lead = (*(1,) * (len(x.shape) - 2 - len(lead)), *lead)
    outer, count = x.shape[:-3], x.shape[-3]
    ratio, batch = count // lead[-1], lead[-1]
    if lead[:-1] == outer:  # all in one
        outer, batch = (), math.prod(lead)
    pieces = math.prod(outer)
    xs = x.reshaped(pieces, batch, x.size // (pieces * batch * inner), inner)
    results = out.reshaped(pieces, batch, out.size // (pieces * batch * outs), outs)
    assert not outer or xs.shape[2] == ratio * n
    for i in range(pieces):
        stack = _stack(turned, _which(i, outer, lead[:-1]), batch)
        multiply(to, "BatchMatMul", _entry(xs, i), stack, _entry(results, i))


def _which(i: int, outer: tuple[int, ...], lead: tuple[int, ...]) -> int:
    """Which entry of w's outer axes meets entry i of x's."""
    found, scale = 0, 1
    for n, m in zip(reversed(outer), reversed(lead), strict=False):
        found += (i % n) // (n // m) * scale
        i, scale = i // n, scale * m
    return found


def _entry(view: View, i: int) -> View:
    """The i-th of the stacks along the first axis of a dense window (pieces, batch, n, m)."""
    return view.part(0, i, i + 1).reshaped(*view.shape[1:])


def _stack(turned: View, i: int, batch: int) -> View:
    """The i-th `batch` of matrices of w^T: (batch, in, out); the last axes keep their order."""
    inner, outs = turned.shape[-2:]
    size = inner * outs
    shape, strides = (batch, inner, outs), (size, *turned.strides[-2:])
    return attrs.evolve(
        turned, shape=shape, strides=strides, offset=turned.offset + i * batch * size
    )
