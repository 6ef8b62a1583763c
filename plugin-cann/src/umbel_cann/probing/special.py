"""Probes of operators with long signatures, and of what is more than one operator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from umbel.graph import MASKED

from umbel_cann.chips import (
    ALIAS,
    ATTENTION,
    BLOCKS,
    CAPTURE,
    EXACT,
    LONG,
    MIXED,
    QUANTISED,
    WEIGHTS,
)
from umbel_cann.memory import BLOCK
from umbel_cann.probing.maker import Maker, wide
from umbel_cann.probing.probe import Data, Probe, Step, Views
from umbel_cann.views import DOWN, KEEP, NCL, ONE, Numbers


def convolution(of: Maker) -> Iterator[Probe]:
    """Depthwise, in one dimension. One that loses float32 is one, too."""
    x, w = of.some(2, 8, 9), of.some(8, 1, 4)
    windows = np.lib.stride_tricks.sliding_window_view(wide(x), 4, axis=2)
    y = of.out(np.einsum("nclk,ck->ncl", windows, wide(w)[:, 0])).after
    one, zero = Numbers((1,)), Numbers((0,))
    given = (Data(x, format=NCL), Data(w, format=NCL), None, one, zero, one, False, zero, 8)
    for kind, variant, within in ((DOWN, "", 1e-2), (KEEP, EXACT, 0.0)):
        step = (*given, Data(after=y, format=NCL), kind)
        yield of.probe("Convolution", step, variant=variant, within=within)


def quantised(of: Maker) -> Iterator[Probe]:
    """Products with weights of 8 or 4 bits, in groups of 32 along a row, turned as weights are;
    with an offset for each group, and without."""
    x, shape = of.x, (32, 64)
    rng = np.random.default_rng(1)
    for name, most in zip(WEIGHTS, (128, 8), strict=True):
        w = rng.integers(-most, most, shape).astype(np.int8)
        scale = (rng.random((32, 2)) / most).astype(np.float16)
        offset = rng.integers(-4, 4, (32, 2)).astype(np.float16)
        for more, added in (("", None), ("offset", offset)):
            moved = wide(w) + (0 if added is None else np.repeat(wide(added), 32, 1))
            y = of.out(wide(x) @ (moved * np.repeat(wide(scale), 32, 1)).T)
            weight = Data(w.T, int4=name == "int4")
            offsets = None if added is None else added.T
            step = (x, weight, scale.T, offsets, None, None, None, 32, y)
            yield of.probe(QUANTISED, step, variant=f"{name} {more}".strip())


def attention(of: Maker) -> Iterator[Probe]:
    """Four heads that share two of keys; a prompt's tokens with a mask, and a single one with
    what is added to its scores. Over more than 512 keys, where a kernel was seen to lose a
    mask; as rows, and in blocks."""
    given = [_attended(of, tokens, 640) for tokens in (3, 1)]
    yield of.probe(ATTENTION, *(step for step, _ in given))
    yield of.probe(ATTENTION, *(step for _, step in given), variant=BLOCKS)


def _attended(of: Maker, tokens: int, length: int) -> tuple[Step, Step]:
    q, k, v = of.some(1, tokens, 4, 64), of.some(1, length, 2, 64), of.some(1, length, 2, 64)
    hidden = np.zeros((1, 1, tokens, length), bool)
    hidden[..., 5], hidden[..., length - 30 :] = True, True
    v[:, 512:] += 1  # whoever stops there is far off, as is who sees what is hidden
    v[:, hidden[0, 0, 0]] += 8
    keys, values = (wide(t).repeat(2, 2).swapaxes(1, 2) for t in (k, v))
    scores = wide(q).swapaxes(1, 2) @ keys.swapaxes(2, 3) / 8
    weights = np.where(hidden, 0, np.exp(scores - scores.max(-1, keepdims=True)))
    weights /= weights.sum(-1, keepdims=True)
    y = np.ascontiguousarray((weights @ values).swapaxes(1, 2))
    far = np.where(hidden, MASKED, 0.0).astype(of.kind).repeat(4, 1)
    shown = (far, None, None) if tokens == 1 else (None, hidden, None)
    count, ends, all_ = length // BLOCK, [None] * 9, (1 << 31) - 1
    table = np.random.default_rng(2).permutation(count).astype(np.int32)
    parts = [np.empty((count, BLOCK, 128), of.kind) for _ in "kv"]
    for part, whole in zip(parts, (k, v), strict=True):
        part[table] = whole.reshape(part.shape)
    precise = 0 if tokens == 1 else 2

    def numbers(block: int) -> Step:
        return 4, 0.125, all_, all_, b"BSND", 2, 0, precise, block, 0, False, 0, 0, of.out(y)

    rows = (q, Views([k]), Views([v]), *shown, None, *[None] * 7, None, *ends, *numbers(0))
    lengths, by = Numbers((length,)), table[None]
    keyed = (q, *(Views([part]) for part in parts), *shown, lengths, *[None] * 7, by, *ends)
    return (*rows, None), (*keyed, *numbers(BLOCK), None)


def last(of: Maker) -> Iterator[Probe]:
    """What is more than one operator, or may spoil what comes after it."""
    x, y, w = of.x, of.y, of.some(32, 64)
    total = wide(x) + wide(y)
    once = ("Add", x, y, ONE, of.out(total))
    yield Probe(
        CAPTURE, of.dtype, (once, ("Mul", x, y, of.out(wide(x) * wide(y)))), captured=True
    )
    for name, lead in (("Mm", ()), ("BatchMatMul", (2,))):
        a, b = of.some(*lead, 64, 4224), of.some(*lead, 16, 4224).swapaxes(-1, -2)
        yield of.probe(name, (a, b, of.out(wide(a) @ wide(b)), KEEP), variant=LONG)
    half, single = x.astype(np.float16), x.astype(np.float32)
    both = Data(after=single + half)
    yield Probe("Add", "f32", (("Add", single, half, ONE, both),), MIXED)
    sums = of.out(total, x)
    product = ("Mm", x, w.T, of.out(wide(x) @ wide(w.T)), KEEP)
    yield Probe("Add", of.dtype, (("Add", sums, y, ONE, sums), product), ALIAS)
