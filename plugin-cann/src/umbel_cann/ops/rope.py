"""Rotary embedding: what the core makes of it is found again, and done at once.

A head x (D values) becomes x C + r(x) S, where r exchanges the partners of each pair and
negates one of them, and C and S hold the cosines and sines of a position for each of the D
values (ones and zeros for those that do not turn). Both tables are made once in a step for all
layers, of the table of pairs that the host has computed.

Where there is no operator for it, all that is one product with a matrix for each token, also
made once for all layers; for many tokens those would be large, and r alone is a product, with a
matrix of 0, 1 and -1: exact in any dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.views import FLOAT, KEEP, ONE, Ints, View, type_of

_TURN = ("mul", "mul", "sub", "mul", "mul", "add", "concat")
_HALVES, _NEIGHBOURS = 0, 1  # the vendor's modes
_WIDEST = 1024  # values of a head that its operator takes
_VALUES = 1 << 21  # of all tokens' matrices at most


@attrs.frozen(eq=False)
class Rope:
    """The nodes of one rope."""

    nodes: tuple[Tensor, ...]
    x: Tensor  # (tokens, heads, D)
    table: Tensor  # (2, tokens, turning / 2)
    neox: bool

    @property
    def turning(self) -> int:
        """Values of a head that turn; the others come after them."""
        return 2 * self.table.shape[2]

    def lower(self, to: Lowering) -> None:
        end, (tokens, _, width) = self.nodes[-1], self.x.shape
        number = type_of(end.dtype)
        x = to.dense(to.view(self.x))
        made = to.apart(end, x)
        out = made.reshaped(*x.shape)
        halves = self.neox and self.turning < width  # it would turn other pairs
        if not halves and width <= _WIDEST and to.why_not("RotaryPositionEmbedding") is None:
            cos, sin = self._tables(to, number, (1, tokens, 1, width))
            x, y = (v.reshaped(1, *v.shape) for v in (x, out))
            mode = _HALVES if self.neox else _NEIGHBOURS
            to.emit("RotaryPositionEmbedding", x, cos, sin, mode, y)
        elif tokens * width * width <= _VALUES:
            to.emit("BatchMatMul", x, self._matrices(to, number), out, KEEP)
        else:
            self._by_parts(to, x, out)
        to.finish(end, made)

    def _matrices(self, to: Lowering, number: int) -> View:
        """What turns a head, for each token: (tokens, D, D)"""
        tokens, _, width = self.x.shape
        shape = (tokens, width, width)

        def fill(out: View) -> None:
            cos, sin = self._tables(to, number, (tokens, 1, width))
            straight, crossed = (to.temporary(shape, number) for _ in range(2))
            to.emit("Mul", to.constant(("one", width), number, np.eye(width)), cos, straight)
            to.emit("Mul", self._exchange(to, number), sin, crossed)
            to.emit("Add", straight, crossed, ONE, out)

        return to.once(("turn", self.table, *self._kind, number), shape, number, fill)

    def _by_parts(self, to: Lowering, x: View, out: View) -> None:
        tokens, _, width = x.shape
        cos, sin = self._tables(to, x.type, (tokens, 1, width))
        straight, partners, crossed = (to.temporary(x.shape, x.type) for _ in range(3))
        rows = (x.size // width, width)
        exchange, into = self._exchange(to, x.type), partners.reshaped(*rows)
        to.emit("Mm", x.reshaped(*rows), exchange, into, KEEP)
        to.emit("Mul", x, cos, straight)
        to.emit("Mul", partners, sin, crossed)
        to.emit("Add", straight, crossed, ONE, out)

    @property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the first and the second of each pair stand."""
        pair = np.arange(self.turning // 2)
        return (pair, pair + len(pair)) if self.neox else (2 * pair, 2 * pair + 1)

    @property
    def _kind(self) -> tuple[bool, int, int]:
        return self.neox, self.turning, self.x.shape[2]

    def _exchange(self, to: Lowering, number: int) -> View:
        first, second = self._places
        r = np.zeros((self.x.shape[2],) * 2)
        r[second, first], r[first, second] = -1, 1
        return to.constant(("exchange", *self._kind), number, r)

    def _tables(self, to: Lowering, number: int, each: Ints) -> tuple[View, View]:
        """C and S, of that shape"""
        _, tokens, half = self.table.shape
        shape = (2, tokens, self.x.shape[2])
        whole = self.turning == shape[2]

        def fill(out: View) -> None:
            spread = np.zeros((half, shape[2]))
            for places in self._places:
                spread[np.arange(half), places] = 1
            by = to.constant(("spread", *self._kind), number, spread)
            given = to.dense(to.operand(self.table, number)).reshaped(2 * tokens, half)
            into = out if whole else to.temporary(shape, number)
            to.emit("Mm", given, by, into.reshaped(2 * tokens, shape[2]), KEEP)
            if not whole:
                still = np.zeros((2, 1, shape[2]))
                still[0, 0, self.turning :] = 1
                rest = to.constant(("still", *self._kind), number, still)
                to.emit("Add", into, rest, ONE, out)

        both = to.once(("rope", self.table, *self._kind, number), shape, number, fill)
        cos, sin = (both.part(0, i, i + 1).reshaped(*each) for i in range(2))
        return cos, sin


def rope(nodes: Sequence[Tensor], to: Lowering) -> Rope | None:
    """The rope that begins with these nodes, if one does."""
    names = [n.op.name for n in nodes if n.op]
    lead = 1 if names[:1] == ["cont"] else 0
    if tuple(names[lead : lead + 7]) != _TURN:
        return None
    *products, joined = nodes[lead : lead + 7]
    neox = joined.attrs["axis"] == 2
    size, number = joined.dtype.block_bytes, type_of(joined.dtype)
    ends = _ends(products, joined, size if not neox else size * joined.shape[3])
    if ends is None or (number == FLOAT and not to.chip.float32_products):
        return None
    first, table = ends
    x = nodes[0].inputs[0] if lead else first
    if lead and (first.storage is not nodes[0] or len(x.shape) != 3):
        return None  # that copy was not made for it
    count, width = lead + 7, 2 * table.shape[2]
    if names[count : count + 1] == ["concat"] and nodes[count].inputs[0].storage is joined:
        rest = nodes[count].inputs[1]
        follows = rest.storage is x.storage and rest.offset == x.offset + width * size
        rows = zip(x.shape[:2], x.strides, rest.strides, strict=False)
        if not follows or any(n > 1 and a != b for n, a, b in rows):
            return None
        count, width = count + 1, width + rest.shape[-1]
    shape, strides = (*joined.shape[:2], width), (*x.strides[:2], size)
    whole = attrs.evolve(x, shape=shape, strides=strides, base=x.storage)
    return Rope(tuple(nodes[:count]), whole, table, neox)


def _ends(
    products: Sequence[Tensor], joined: Tensor, apart: int
) -> tuple[Tensor, Tensor] | None:
    """The first of each pair, and the table, of a cos - b sin and a sin + b cos."""
    a_cos, b_sin, less, a_sin, b_cos, more = products
    (a, cos), (b, sin) = a_cos.inputs, b_sin.inputs
    again = [tuple(map(_where, t.inputs)) for t in (a_sin, b_cos)]
    table, size = cos.storage, cos.dtype.block_bytes
    half, tokens = joined.size // (2 * joined.shape[0] * joined.shape[1]), joined.shape[0]
    fits = again == [(_where(a), _where(sin)), (_where(b), _where(cos))]
    fits = fits and less.inputs == (a_cos, b_sin) and more.inputs == (a_sin, b_cos)
    fits = fits and joined.inputs == (less, more)
    fits = fits and b.storage is a.storage and b.offset == a.offset + apart
    fits = fits and b.strides == a.strides and sin.storage is table
    fits = fits and table.shape == (2, tokens, half) and table.is_contiguous
    fits = fits and (cos.offset, sin.offset) == (0, tokens * half * size)
    return (a, table) if fits else None


def _where(t: Tensor) -> tuple[object, ...]:
    """Two windows of which this is the same show the same values."""
    return t.storage, t.offset, t.shape, t.strides
