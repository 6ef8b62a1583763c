"""Rows: moved, joined, summed, taken from tables, written into state, ordered."""

from __future__ import annotations

import math

import numpy as np
from umbel.graph import Role, Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops.few_bits import rows_of
from umbel_cann.ops.products import multiply
from umbel_cann.program import RowCopies
from umbel_cann.states import integers
from umbel_cann.views import (
    BYTES,
    INT32,
    INT64,
    Numbers,
    Scalar,
    Unsupported,
    View,
    Views,
    type_of,
)


def cont(to: Lowering, node: Tensor) -> None:
    to.emit("InplaceCopy", to.stored(node), to.stored(node.inputs[0]))


def concat(to: Lowering, node: Tensor) -> None:
    """Where there is no operator, parts are copied into their place. A copy to where there are
    gaps has to be made anew for each step: such parts are first brought together with the axis
    in front, where there are none."""
    parts, axis = [to.view(t) for t in node.inputs], node.attrs["axis"]
    out, at = to.view(node), 0
    if to.why_not("Cat", out.type) is None and all(part.dense for part in parts):
        to.emit("Cat", Views(tuple(parts)), axis, out)
        return
    order = (axis, *(i for i in range(len(out.shape)) if i != axis))
    turned = out.permuted(*order)
    direct = turned.dense
    if not direct:
        turned = to.temporary(turned.shape, out.type)
    for part in parts:
        end = at + part.shape[axis]
        to.emit("InplaceCopy", turned.part(0, at, end), part.permuted(*order))
        at = end
    if not direct:
        back = sorted(range(len(order)), key=order.__getitem__)
        to.emit("InplaceCopy", out, turned.permuted(*back))


def sum_rows(to: Lowering, node: Tensor) -> None:
    x = to.dense(to.operand(node.inputs[0], type_of(node.dtype)))
    sum_of(to, x, to.view(node))


def sum_of(to: Lowering, x: View, out: View) -> None:
    """Over the last axis, which stays; where there is no sum, from the mean."""
    last = Numbers((len(x.shape) - 1,))
    if to.why_not("ReduceSum", x.type) is None:
        to.emit("ReduceSum", x, last, True, out.type, out)
        return
    mean = to.temporary(out.shape, out.type)
    to.emit("Mean", x, last, True, out.type, mean)
    to.emit("Muls", mean, Scalar(x.shape[-1]), out)


def get_rows(to: Lowering, node: Tensor) -> None:
    table, ids = node.inputs
    index = to.dense(to.view(ids))
    if table.dtype.quantised:
        rows_of(to, node, index.reshaped(index.size), gather)
        return
    rows = to.stored(table)
    made = to.result(node, rows.type)
    if len(table.shape) == 2:
        gather(to, rows, index.reshaped(index.size), made.reshaped(index.size, rows.shape[1]))
    else:
        _of_each(to, to.dense(rows), index, made)
    to.finish(node, made)


def gather(to: Lowering, table: View, index: View, out: View) -> None:
    """Rows of a table (R, C) by an index (n): (n, C)."""
    if to.chip.gather == "Embedding":
        to.emit("Embedding", table, index, out)
    else:
        to.emit(to.chip.gather, table, 0, index, out)


def _of_each(to: Lowering, tables: View, index: View, out: View) -> None:
    """Of each matrix (*B, R, C) its own rows (*B, n).

    As of one table, where the chip can add integers; else by products with rows that are one at
    a single place, where an infinity in a row that nobody asks for would give a NaN.
    """
    (count, width), each = tables.shape[-2:], index.shape[-1]
    many = math.prod(tables.shape[:-2])
    flat, index = tables.reshaped(many * count, width), index.reshaped(many, each)
    if many > 1 and not to.chip.float32:
        places = to.temporary((many * each, count), out.type)
        one = to.constant(("one", count), out.type, np.eye(count))
        gather(to, one, index.reshaped(many * each), places)
        stack = flat.reshaped(many, count, width)
        chosen = places.reshaped(many, each, count)
        multiply(to, "BatchMatMul", chosen, stack, out.reshaped(many, each, width))
        return
    if many > 1:
        begins = to.constant(("begins", many, count), INT32, np.arange(many)[:, None] * count)
        at = to.temporary(index.shape, INT32)
        to.emit("Add", index, begins, Scalar(1, INT32), at)
        index = at
    gather(to, flat, index.reshaped(many * each), out.reshaped(many * each, width))


def set_rows(to: Lowering, node: Tensor) -> None:
    state, source, ids = node.inputs
    target = to.stored(state)
    rows = to.dense(to.operand(source, target.type))
    if to.chip.scatters:
        index = to.dense(to.view(ids))
        to.emit("InplaceIndexCopy", target, 0, index.reshaped(index.size), rows)
        return
    storage = ids.storage
    if storage.role is not Role.INPUT or ids.shape != storage.shape or not target.dense:
        msg = "set_rows to where the host does not know"
        raise Unsupported(msg)
    known = integers(storage, to.slots) if to.slots else lambda: None
    to.launch(RowCopies(target, rows, target.shape[1] * BYTES[target.type], known, node))


def top_k(to: Lowering, node: Tensor) -> None:
    """By sorting all: of equal values the first is to come first, which only a stable sort
    promises."""
    x, k = node.inputs[0], node.attrs["k"]
    values = to.dense(to.view(x))
    axis = len(x.shape) - 1
    ordered, where = to.temporary(x.shape, values.type), to.temporary(x.shape, INT64)
    to.emit("Sort", values, True, axis, True, ordered, where)
    to.emit("Cast", where.part(axis, 0, k), INT32, to.view(node))
