"""State space models: the causal convolution and the selective scan of Mamba.

The scan computes h_t = exp(d_t A) h_(t-1) + d_t x_t B_t and y_t = h_t C_t. For one token those
are a few products. Of many, all prefixes at once by doubling (Hillis and Steele 1986): what a
token adds, and by how much older states have decayed in it, is combined with that of the token
1, 2, 4 ... before. These are 3 launches for each doubling instead of as many for each token,
and no decay is ever undone by a division. Where all states of a head decay alike (Mamba 2),
many tokens are products instead, 64 tokens at once ("Transformers are SSMs", section 6), if the
chip multiplies what it adds. States and sums are float32 where the chip has it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from umbel.graph import Tensor

from umbel_cann.lowering import Lowering
from umbel_cann.ops.divided import POWER
from umbel_cann.ops.elementwise import exp_of, softplus_of
from umbel_cann.ops.rows import gather, sum_of
from umbel_cann.views import (
    DOWN,
    FLOAT,
    FLOAT16,
    KEEP,
    NCL,
    ONE,
    Numbers,
    Scalar,
    View,
    contiguous,
    type_of,
)

_VALUES = 1 << 22  # of the states of several tokens that are in memory at once
_CHUNK = 64  # tokens that are computed as products
_FEW = 8  # tokens for which doubling takes fewer launches
_NEVER = -10000.0  # whose exponential is zero in any dtype


def ssm_conv(to: Lowering, node: Tensor) -> None:
    """Channels (S, C, L) against kernels (C, K): one convolution, in C groups of one channel.

    Nothing is copied: the weight is seen as (C, 1, K), and the result (S, T, C) is written
    through the strides of (S, C, T).
    """
    number = type_of(node.dtype)
    x, kernel = (to.operand(t, number) for t in node.inputs)
    (channels, width), (outer, inner) = kernel.shape, kernel.strides
    kernel = attrs.evolve(kernel, shape=(channels, 1, width), strides=(outer, outer, inner))
    out = to.view(node).permuted(0, 2, 1)
    x, kernel, out = (attrs.evolve(view, format=NCL) for view in (x, kernel, out))
    one, zero = Numbers((1,)), Numbers((0,))
    steps = one, zero, one  # stride, padding, dilation
    how = DOWN if to.chip.float32 and not to.chip.float32_products else KEEP
    to.emit("Convolution", x, kernel, None, *steps, False, zero, channels, out, how)


@attrs.frozen
class _Scan:
    """A scan on its way: G groups of R heads of P channels with N states.

    All views have the axes (S, T, G, R, P, N), some of which are of one value.
    """

    to: Lowering
    number: int  # in which it is computed
    groups: int
    each: int  # heads of a group

    def view(self, t: Tensor, *axes: int) -> View:
        """An input (S, T, ...) as (S, T, G, *axes)."""
        dense = self.to.dense(self.to.operand(t, self.number))
        return dense.reshaped(*t.shape[:2], self.groups, *axes)

    def mul(self, a: View, b: View) -> View:
        shape = tuple(map(max, a.shape, b.shape))
        out = self.to.temporary(shape, self.number)
        self.to.emit("Mul", a, b, out)
        return out

    def exp(self, powers: View) -> View:
        out = self.to.temporary(powers.shape, self.number)
        exp_of(self.to, powers, out)
        return out

    def products(self, a: View, b: View, *shape: int) -> View:
        """Matrices (many, n, k) times (many, k, m), as `shape`."""
        out = self.to.temporary((*a.shape[:2], b.shape[2]), self.number)
        self.to.emit("BatchMatMul", a, b, out, KEEP)
        return out.reshaped(*shape)


_Some = Callable[["_Scan", View, "_Tokens", View, View], None]


@attrs.frozen
class _Tokens:
    """What some tokens bring, and where their outputs go."""

    time: View  # d
    given: View  # d x
    b_in: View
    c_out: View
    y: View

    def some(self, start: int, stop: int) -> _Tokens:
        views = attrs.astuple(self, recurse=False)
        return _Tokens(*(view.part(1, start, stop) for view in views))


def ssm_scan(to: Lowering, node: Tensor) -> None:
    state, x, dt, a, b, c, ids = node.inputs
    (seqs, tokens, heads, size), (groups, n) = x.shape, b.shape[2:]
    s = _Scan(to, FLOAT if to.chip.float32 else FLOAT16, groups, heads // groups)
    made = to.result(node, s.number)
    states = (seqs, 1, groups, s.each, size, n)
    end = made.part(0, x.size, node.size).reshaped(*states)
    h = _begin(s, state, ids).reshaped(*states)
    rates = to.dense(to.operand(a, s.number)).reshaped(1, 1, groups, s.each, 1, a.shape[1])
    exact = type_of(node.dtype) == FLOAT or node.storage not in to.last
    power = 0 if exact else POWER
    y = made.part(0, 0, x.size).reshaped(seqs, tokens, groups, s.each, size, 1)
    every = _inputs(s, x, dt, b, c, power, y)
    some, piece = _form(s, a, tokens, h.size)
    for start in range(0, tokens, piece):
        stop = min(start + piece, tokens)
        with to.again():
            some(s, rates, every.some(start, stop), h, end if stop == tokens else h)
    to.finish(node, made)
    to.divide(node, power, x.size * node.dtype.block_bytes)


def _inputs(
    s: _Scan, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, power: int, y: View
) -> _Tokens:
    """Of all tokens; their outputs are divided by a power of two as C is."""
    to, n = s.to, b.shape[-1]
    time = softplus_of(to, s.view(dt, s.each, 1, 1))
    given = s.mul(s.view(x, s.each, x.shape[-1], 1), time)
    c_out = s.view(c, 1, 1, n)
    if power:
        whole, c_out = c_out, to.temporary(c_out.shape, s.number)
        to.emit("Muls", whole, Scalar(2.0**-power), c_out)
    return _Tokens(time, given, s.view(b, 1, 1, n), c_out, y)


def _form(s: _Scan, a: Tensor, tokens: int, values: int) -> tuple[_Some, int]:
    """How several tokens are computed, and how many at once."""
    products = s.number == FLOAT16 or s.to.chip.float32_products
    if a.shape[1] == 1 and products and tokens > _FEW:
        return _by_products, _CHUNK
    return _by_doubling, max(_VALUES // values, 1)


def _begin(s: _Scan, state: Tensor, ids: Tensor) -> View:
    """The states of the sequences: rows of `state` (slots, H, P, N)."""
    to, table = s.to, s.to.stored(state)
    if table.strides[1:] != contiguous(table.shape[1:]):
        table = to.dense(table)
    slots, width = table.shape[0], state.size // state.shape[0]
    table = attrs.evolve(table, shape=(slots, width), strides=(table.strides[0], 1))
    index = to.dense(to.view(ids))
    h = to.temporary((index.size, width), table.type)
    gather(to, table, index, h)
    return to.cast(h, s.number)


def _by_doubling(s: _Scan, rates: View, t: _Tokens, h: View, end: View) -> None:
    """Some tokens after the states `h`: their outputs to `y`, the states then to `end`."""
    to, tokens = s.to, t.time.shape[1]
    decays, states = s.exp(s.mul(t.time, rates)), s.mul(t.given, t.b_in)
    before = s.mul(decays.part(1, 0, 1), h)
    if tokens == 1:
        to.emit("Add", states, before, ONE, end)
        _outputs(s, end, t.c_out, t.y)
        return
    to.emit("InplaceAdd", states.part(1, 0, 1), before, ONE)
    _prefixes(s, decays, states)
    to.emit("InplaceCopy", end, states.part(1, tokens - 1, tokens))
    _outputs(s, states, t.c_out, t.y)


def _prefixes(s: _Scan, decays: View, states: View) -> None:
    """Adds to what each token gives what is left of all before it."""
    to, tokens, step = s.to, states.shape[1], 1
    older, spare = (to.temporary(v.shape, s.number) for v in (states, decays))
    while step < tokens:
        left, later = older.part(1, step, tokens), states.part(1, step, tokens)
        to.emit("Mul", decays.part(1, step, tokens), states.part(1, 0, tokens - step), left)
        to.emit("InplaceAdd", later, left, ONE)
        if 2 * step < tokens:
            a, b = decays.part(1, 2 * step, tokens), decays.part(1, step, tokens - step)
            to.emit("Mul", a, b, spare.part(1, 2 * step, tokens))
            decays, spare = spare, decays
        step *= 2


def _outputs(s: _Scan, states: View, c_out: View, y: View) -> None:
    """y = h C, in float16 with sums in float32."""
    to = s.to
    sums = y if y.dense else to.temporary(y.shape, s.number)
    if s.number == FLOAT and not to.chip.float32_products:
        sum_of(to, s.mul(states, c_out), sums)
    else:
        seqs, tokens, groups, each, size, n = states.shape
        many, c_out = seqs * tokens * groups, to.dense(c_out)
        h, by = states.reshaped(many, each * size, n), c_out.reshaped(many, 1, n)
        to.emit("BatchMatMul", h, by.turned(), sums.reshaped(many, each * size, 1), KEEP)
    if sums is not y:
        to.emit("InplaceCopy", y, sums)


def _by_products(s: _Scan, rates: View, t: _Tokens, h: View, end: View) -> None:
    """The same as C B^T X, each pair of tokens weighted by what is left of the one at the
    other."""
    to, (seqs, q, groups, each, size, _) = s.to, t.given.shape
    many, n = seqs * groups, t.b_in.shape[-1]
    left, begin = _left(s, s.mul(t.time, rates))
    turned = (to.dense(v.permuted(0, 2, 1, 3, 4, 5)) for v in (t.b_in, t.c_out))
    b_in, c_out = (v.reshaped(many, q, n) for v in turned)
    x, out = (
        attrs.evolve(v, shape=v.shape[:-1], strides=v.strides[:-1]) for v in (t.given, t.y)
    )
    scores = s.products(c_out, b_in.turned(), seqs, groups, 1, q, q)
    pairs = s.mul(scores, left).reshaped(many * each, q, q)
    values = to.dense(x.permuted(0, 2, 3, 1, 4)).reshaped(many * each, q, size)
    new = s.products(pairs, values, seqs, groups, each, q, size)
    before = h.reshaped(many, each * size, n)
    old = s.products(c_out, before.turned(), seqs, groups, q, each, size)
    old = s.mul(old, begin.permuted(0, 1, 3, 2, 4))
    to.emit("Add", old.permuted(0, 2, 1, 3, 4), new.permuted(0, 3, 1, 2, 4), ONE, out)
    last = left.part(3, q - 1, q).permuted(0, 1, 4, 2, 3)
    values = s.mul(x.permuted(0, 2, 1, 3, 4), last).reshaped(many, q, each * size)
    states = (seqs, groups, each, size, n)
    gained = s.products(values.turned(), b_in, *states)
    kept = s.mul(h.reshaped(*states), begin.part(3, q - 1, q))
    to.emit("Add", kept, gained, ONE, end.reshaped(*states))


def _left(s: _Scan, powers: View) -> tuple[View, View]:
    """Of each token (the last axis) at each later one, or at itself, what decay has left of it:
    (S, G, R, q, q), zero at the others; and of what was before all: (S, G, R, q, 1).

    Powers are summed by a product, whose sums are float32: as differences of sums from the
    beginning they would have their rounding.
    """
    to, (seqs, q, groups, each) = s.to, powers.shape[:4]
    heads = to.dense(powers.reshaped(seqs, q, groups * each).permuted(0, 2, 1))
    token, before, at = np.ogrid[:_CHUNK, : _CHUNK + 1, :_CHUNK]  # t, s + 1, r
    within = to.constant("within", s.number, (before <= at) & (at <= token))
    never = to.constant("never", s.number, (before > token + 1)[..., 0] * _NEVER)
    some = to.dense(within.part(0, 0, q).part(1, 0, q + 1).part(2, 0, q))
    sums = to.temporary((seqs * groups * each, q, q + 1), s.number)
    flat = sums.reshaped(sums.shape[0], q * (q + 1))
    by = some.reshaped(q * (q + 1), q).turned()
    to.emit("Mm", heads.reshaped(sums.shape[0], q), by, flat, KEEP)
    masked = to.temporary(sums.shape, s.number)
    to.emit("Add", sums, never.part(0, 0, q).part(1, 0, q + 1), ONE, masked)
    left = s.exp(masked).reshaped(seqs, groups, each, q, q + 1)
    return left.part(4, 1, q + 1), left.part(4, 0, 1)
