"""Operations on weights of 4 and 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from umbel.graph import Tensor

from umbel_cann.chips import QUANTISED
from umbel_cann.lowering import Lowering
from umbel_cann.views import FLOAT16, INT4, INT8, ONE, Unsupported, View, contiguous, type_of
from umbel_cann.weights.quantised import GROUP, MOST, Layout, form

Gather = Callable[[Lowering, View, View, View], None]  # a table, which rows, and to where


@attrs.frozen
class Weight:
    """Some rows (n, k) of a weight: its numbers, and a scale and perhaps an offset (n, k / 32)
    for each group of them."""

    numbers: View
    scales: View
    offsets: View | None


def weight(to: Lowering, t: Tensor) -> Weight:
    """Where the parts of a weight lie, or of neighbouring rows of it."""
    whole, address = t.storage, to.address(t)
    found = form(whole, to.chip)
    if found is None:
        msg = f"it has no {t.dtype}"
        raise Unsupported(msg)
    if t.shape[1:] != whole.shape[1:] or t.strides != whole.strides:
        msg = f"it takes weights of {t.dtype} by whole rows only"
        raise Unsupported(msg)
    n, k = t.shape
    first, rows = t.offset // whole.strides[0], whole.shape[0]

    def part(at: int, number: int, width: int) -> View:
        shape = n, width
        place = address + at, first * width, rows * width
        return View(number, shape, contiguous(shape), *place)

    (at, _), *others = Layout(found, whole.size).parts
    numbers = part(at, INT8 if found.bits == 8 else INT4, k)
    scales, *offsets = (part(at, FLOAT16, k // GROUP) for at, _ in others)
    return Weight(numbers, scales, offsets[0] if offsets else None)


def product(to: Lowering, node: Tensor) -> None:
    """x w^T, in pieces where there are more columns than the operator takes.

    x is float16, which rounds by an eighth of what bfloat16 does; it is never float32.
    """
    w, x = node.inputs
    parts = weight(to, w)
    rows = to.dense(to.operand(x, FLOAT16))
    made = to.result(node, FLOAT16)
    (n, k), m = w.shape, rows.size // w.shape[1]
    rows, out = rows.reshaped(m, k), made.reshaped(m, n)
    group = GROUP if k > GROUP else 0  # one for each column
    for start in range(0, n, MOST):
        end = min(start + MOST, n)
        some = out.part(1, start, end)
        into = some if some.dense else to.temporary(some.shape, FLOAT16)
        numbers, scales, offsets = (
            part and part.part(0, start, end).turned()
            for part in (parts.numbers, parts.scales, parts.offsets)
        )
        factors = rows, numbers, scales, offsets, None, None, None
        to.emit(QUANTISED, *factors, group, into)
        if into is not some:
            to.emit("InplaceCopy", some, into)
    to.finish(node, made)


def rows_of(to: Lowering, node: Tensor, index: View, gather: Gather) -> None:
    """Rows of a table of 8 bits, as values.

    A gather only moves bits: two numbers go as one float16, which every chip's operator takes.
    """
    table = weight(to, node.inputs[0])
    if table.numbers.type != INT8:
        msg = "it takes no rows of weights of 4 bits"
        raise Unsupported(msg)
    number, (m, k) = type_of(node.dtype), (index.size, node.shape[-1])

    def taken(source: View) -> View:
        rows = to.temporary((m, source.shape[1]), FLOAT16)
        gather(to, source, index, rows)
        return rows

    def factors(source: View) -> View:
        return to.cast(taken(source), number).reshaped(m, k // GROUP, 1)

    pairs, shape = taken(_pairs(table.numbers)), (m, k // GROUP, GROUP)
    numbers = View(INT8, shape, contiguous(shape), pairs.address, 0, m * k)
    values = to.cast(numbers, number)
    if table.offsets is not None:
        values, numbers = to.temporary(shape, number), values
        to.emit("Add", numbers, factors(table.offsets), ONE, values)
    to.emit("Mul", values, factors(table.scales), to.view(node).reshaped(*shape))


def _pairs(numbers: View) -> View:
    """Rows of numbers as half as many float16."""
    n, k = numbers.shape
    shape, place = (n, k // 2), (numbers.address, numbers.offset // 2, numbers.elements // 2)
    return View(FLOAT16, shape, contiguous(shape), *place)
