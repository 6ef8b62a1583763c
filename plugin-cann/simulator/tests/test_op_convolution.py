"""Convolutions: one axis and two, groups, and the depthwise ones of recurrent layers."""

from __future__ import annotations

from ctypes import c_int
from itertools import product
from typing import Any

import numpy as np
from operators import NCHW, NCL, Array, Operators, Tensor, close, some
from simulated import Acl, simulated

ZERO = c_int(0)


def convolved(
    x: Array, w: Array, stride: int, padding: int, dilation: int, groups: int
) -> Array:
    """Over all axes behind the second alike."""
    axes = x.ndim - 2
    wide = np.pad(x.astype(np.float64), [(0, 0)] * 2 + [(padding, padding)] * axes)
    sizes = [
        (wide.shape[2 + i] - dilation * (w.shape[2 + i] - 1) - 1) // stride + 1
        for i in range(axes)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    each, made = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        part = wide[:, o // made * each : (o // made + 1) * each]
        for at in product(*map(range, w.shape[2:])):
            window: Any = [slice(None)] * 2 + [
                slice(a * dilation, a * dilation + (n - 1) * stride + 1, stride)
                for a, n in zip(at, sizes, strict=True)
            ]
            column: Any = (o, slice(None), *at)
            out[:, o] += np.tensordot(part[tuple(window)], w[column].astype(np.float64), (1, 0))
    return out


def arguments(
    on: Operators,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
    kind: Any = ZERO,
) -> tuple[Any, ...]:
    axes = x.array.ndim - 2
    lists = [on.ints(*[n] * axes) for n in (stride, padding, dilation, 0)]
    return (x, w, bias, *lists[:3], transposed, lists[3], groups, out, kind)


@simulated()
def test_convolutions(acl: Acl) -> None:
    on = Operators(acl)
    for axes, form in ((1, NCL), (2, NCHW)):
        for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4)):
            for dtype in ("f32", "f16", "bf16"):
                x, w = (
                    some((2, 4, *[9] * axes), dtype),
                    some((8, 4 // groups, *[3] * axes), dtype),
                )
                bias = some((8,), dtype)
                want = convolved(x, w, stride, padding, dilation, groups)
                want += bias.astype(np.float64).reshape(-1, *[1] * axes)
                out = on.empty(want.shape, dtype, form)
                on.call(
                    "Convolution",
                    *arguments(
                        on,
                        on.tensor(x, form=form),
                        on.tensor(w, form=form),
                        on.tensor(bias),
                        out,
                        stride,
                        padding,
                        dilation,
                        groups,
                    ),
                )
                close(on.read(out), want, dtype, 16, f"{axes} {stride} {dtype}")


@simulated()
def test_depthwise_over_time_through_views(acl: Acl) -> None:
    """Inputs lie as (sequence, channel, time), results as (sequence, time, channel)."""
    on = Operators(acl)
    for channels, kernel, tokens, sequences in ((24, 4, 7, 2), (16, 3, 1, 4)):
        x = some((sequences, channels, kernel - 1 + tokens), "f32")
        w = some((channels, 1, kernel), "f32")
        place = np.zeros((sequences, tokens, channels), np.float32).transpose(0, 2, 1)
        out = on.tensor(place, form=NCL)
        on.call(
            "Convolution",
            *arguments(
                on, on.tensor(x, form=NCL), on.tensor(w, form=NCL), None, out, groups=channels
            ),
        )
        want = convolved(x, w, 1, 0, 1, channels)
        got = on.read(out)
        close(got, want, "f32", 4)
        assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-12


@simulated(chip="310P")
def test_a_310p_rounds_to_float16(acl: Acl) -> None:
    on = Operators(acl)
    x, w = some((1, 64, 40), "f32"), some((64, 1, 4), "f32")
    out = on.empty((1, 64, 37), "f32", NCL)
    given = on.tensor(x, form=NCL), on.tensor(w, form=NCL), None, out
    assert on.refused("Convolution", *arguments(on, *given, groups=64)) == 161002
    on.call("Convolution", *arguments(on, *given, groups=64, kind=c_int(1)))
    want = convolved(x, w, 1, 0, 1, 64)
    error = ((on.read(out) - want) ** 2).sum() / (want**2).sum()
    assert 3e-8 < error < 3e-7  # 1.14e-7 was measured


@simulated()
def test_what_a_convolution_refuses(acl: Acl) -> None:
    on = Operators(acl)
    x, w = on.tensor(some((1, 4, 9)), form=NCL), on.tensor(some((8, 2, 3)), form=NCL)
    out, plain = on.empty((1, 8, 7), "f32", NCL), on.tensor(some((1, 4, 9)))
    name = "Convolution"
    given = arguments(on, x, w, None, out, groups=2)
    assert on.refused(name, None, *given[1:]) == 161001
    assert on.refused(name, *given[:3], None, *given[4:]) == 161001
    assert on.refused(name, *arguments(on, x, w, None, out)) == 161002  # groups
    assert on.refused(name, *arguments(on, x, w, None, out, groups=2, padding=1)) == 161002
    assert (
        on.refused(name, *arguments(on, x, w, None, out, groups=2, transposed=True)) == 161002
    )
    assert on.refused(name, *arguments(on, plain, w, None, out, groups=2)) == 161002
    assert on.refused(name, *arguments(on, x, w, plain, out, groups=2)) == 161002
    on.call(name, *arguments(on, x, w, None, out, groups=2))
