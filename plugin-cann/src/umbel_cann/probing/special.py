"""Probes of operators with long signatures, and of what is more than one operator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from umbel_cann.chips import ALIAS, CAPTURE, EXACT, LONG, MIXED, QUANTISED, WEIGHTS
from umbel_cann.probing.maker import Maker, wide
from umbel_cann.probing.probe import Data, Probe, Views
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
    """Four heads that share two of keys, with a mask; a prompt's tokens and a single one."""
    steps, all_ = [], (1 << 31) - 1
    for tokens in (3, 1):
        q, k, v = of.some(1, tokens, 4, 64), of.some(1, 32, 2, 64), of.some(1, 32, 2, 64)
        hidden = np.zeros((1, 1, tokens, 32), bool)
        hidden[..., 20:] = True
        keys, values = (wide(t).repeat(2, 2).swapaxes(1, 2) for t in (k, v))
        scores = wide(q).swapaxes(1, 2) @ keys.swapaxes(2, 3) / 8
        weights = np.where(hidden, 0, np.exp(scores - scores.max(-1, keepdims=True)))
        weights /= weights.sum(-1, keepdims=True)
        y = of.out(np.ascontiguousarray((weights @ values).swapaxes(1, 2)))
        given = (q, Views([k]), Views([v]), None, hidden, *[None] * 19)
        numbers = (4, 0.125, all_, all_, b"BSND", 2, 0, 2, 0, 0, False, 0, 0)
        steps.append((*given, *numbers, y, None))
    yield of.probe("FusedInferAttentionScoreV2", *steps)


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
