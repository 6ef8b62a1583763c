"""Operations on weights of 4 and 8 bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
from umbel.graph import Tensor

from umbel_cann.chips import QUANTISED
from umbel_cann.lowering import Lowering
from umbel_cann.views import (
    FLOAT16,
    INT4,
    INT8,
    INT32,
    ONE,
    Unsupported,
    View,
    contiguous,
    type_of,
)
from umbel_cann.weights.quantised import GROUP, MOST, Layout, form

Gather = Callable[[Lowering, View, View, View], None]  # a table, which rows, and to where


@attrs.frozen
class Weight:
    """Some rows (n, k) of a weight: its numbers, and a scale and perhaps an offset (n, k / 32)
    for each group of them."""

    numbers: View
    scales: View
    offsets: View | None

    def each(self, change: Callable[[View], View]) -> Weight:
        """The same with other parts."""
        return Weight(
            change(self.numbers),
            change(self.scales),
            None if self.offsets is None else change(self.offsets),
        )

    def rows(self, start: int, stop: int) -> Weight:
        return self.each(lambda part: part.part(0, start, stop))


def weight(to: Lowering, t: Tensor) -> Weight:
    """Where the parts of a weight lie, or of neighbouring rows of it: those of a stack of
    matrices stand below each other."""
    whole, address = t.storage, to.address(t)
    found = form(whole, to.chip)
    if found is None:
        msg = f"it has no {t.dtype}"
        raise Unsupported(msg)
    k = whole.shape[-1]
    if t.shape[-1] != k or not t.is_contiguous:
        msg = f"it takes weights of {t.dtype} by whole rows only"
        raise Unsupported(msg)
    first, n, rows = t.offset // whole.dtype.row_bytes(k), t.size // k, whole.size // k

    def part(at: int, number: int, width: int) -> View:
        shape = n, width
        place = address + at, first * width, rows * width
        return View(number, shape, contiguous(shape), *place)

    (at, _), *others = Layout(found, whole.size).parts
    numbers = part(at, INT8 if found.bits == 8 else INT4, k)
    scales, *offsets = (part(at, FLOAT16, k // GROUP) for at, _ in others)
    return Weight(numbers, scales, offsets[0] if offsets else None)


def product(to: Lowering, node: Tensor) -> None:
    """x w^T; of a stack of matrices (batch, n, k) each with the rows that it serves.

    x is float16, which rounds by an eighth of what bfloat16 does; it is never float32.
    """
    w, x = node.inputs
    parts, (n, k), stack = weight(to, w), w.shape[-2:], w.shape[:-2]
    if len(stack) > 1:
        msg = f"it takes stacks of {w.dtype} along one axis only"
        raise Unsupported(msg)
    count = stack[0] if stack else 1
    blocks = math.prod(x.shape[:-3]) * count if stack else 1
    made, m = to.result(node, FLOAT16), x.size // (blocks * k)
    rows = to.dense(to.operand(x, FLOAT16)).reshaped(blocks * m, k)
    out = made.reshaped(blocks * m, n)
    for i in range(blocks):
        first, here = i % count * n, (0, i * m, i * m + m)
        times(to, rows.part(*here), parts.rows(first, first + n), out.part(*here))
    to.finish(node, made)


def times(to: Lowering, x: View, w: Weight, out: View) -> None:
    """x (m, k) w^T, in pieces where there are more columns than the operator takes."""
    n, k = out.shape[1], x.shape[1]
    group = GROUP if k > GROUP else 0  # one for each column
    for start in range(0, n, MOST):
        end = min(start + MOST, n)
        some = out.part(1, start, end)
        into = some if some.dense else to.temporary(some.shape, FLOAT16)
        turned = w.rows(start, end).each(View.turned)
        factors = x, turned.numbers, turned.scales, turned.offsets, None, None, None
        to.emit(QUANTISED, *factors, group, into)
        if into is not some:
            to.emit("InplaceCopy", some, into)


def rows_of(to: Lowering, node: Tensor, index: View, gather: Gather) -> None:
    """Rows of a table of 8 bits, as values."""
    table = weight(to, node.inputs[0])
    if table.numbers.type != INT8:
        msg = "it takes no rows of weights of 4 bits"
        raise Unsupported(msg)
    if len(node.inputs[0].shape) > 2:
        msg = "it takes rows of one matrix of few bits only"
        raise Unsupported(msg)
    number, (m, k) = type_of(node.dtype), (index.size, node.shape[-1])

    def taken(source: View) -> View:
        rows = to.temporary((m, source.shape[1]), source.type)
        gather(to, source, index, rows)
        return rows

    def factors(source: View) -> View:
        return to.cast(taken(source), number).reshaped(m, k // GROUP, 1)

    moved, shape = taken(words(table.numbers)), (m, k // GROUP, GROUP)
    numbers = View(INT8, shape, contiguous(shape), moved.address, 0, m * k)
    values = to.cast(numbers, number)
    if table.offsets is not None:
        values, numbers = to.temporary(shape, number), values
        to.emit("Add", numbers, factors(table.offsets), ONE, values)
    to.emit("Mul", values, factors(table.scales), to.view(node).reshaped(*shape))


def words(numbers: View) -> View:
    """Rows of numbers as such of 32 bits, which a gather moves as they are."""
    n, k = numbers.shape
    each = 4 if numbers.type == INT8 else 8
    place = numbers.address, numbers.offset // each, numbers.elements // each
    return View(INT32, (n, k // each), contiguous((n, k // each)), *place)
