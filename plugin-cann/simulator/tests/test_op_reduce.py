"""Sums, norms, softmax, orders, gates."""

from __future__ import annotations

import math

import numpy as np
from operators import Array, Operators, close, some
from simulated import Acl, simulated

FLOATS = ("f32", "f16", "bf16")
NUMBER = {"f32": 0, "f16": 1, "bf16": 27}


def wide(x: Array) -> Array:
    return x.astype(np.float64)


@simulated()
def test_reductions(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in FLOATS:
        x = some((3, 4, 5), dtype)
        t = on.tensor(x)
        for axes, keep in (((2,), True), ((0, 2), False), ((1,), False), ((), True)):
            along, dims = axes or (0, 1, 2), on.ints(*axes)
            shape = x.sum(along, keepdims=keep).shape
            for name, want in (("Mean", np.mean), ("ReduceSum", np.sum)):
                got = on.run(name, shape, dtype, t, dims, keep, NUMBER[dtype])
                close(got, want(wide(x), along, keepdims=keep), dtype, 8, name)
            close(
                on.run("Amax", shape, dtype, t, dims, keep), x.max(along, keepdims=keep), dtype
            )
            for p in (1, 2, 3):
                norm = (np.abs(wide(x)) ** p).sum(along, keepdims=keep) ** (1 / p)
                close(on.run("Norm", shape, dtype, t, on.scalar(p), dims, keep), norm, dtype, 4)
    x = some((3, 4), "f32")
    got = on.run("Mean", (3, 1), "f32", on.tensor(x[:, ::2]), on.ints(1), True, 0)
    close(got, x[:, ::2].mean(1, keepdims=True), "f32")
    t, out = on.tensor(x), on.empty((3, 1), "f32")
    assert on.refused("Mean", t, on.ints(1), False, 0, out) == 161002
    assert on.refused("Mean", t, on.ints(1), True, 1, out) == 161002
    assert on.refused("Mean", t, on.ints(2), True, 0, out) == 161002
    assert on.refused("Mean", t, None, True, 0, out) == 161001


@simulated()
def test_along_one_axis(acl: Acl) -> None:
    on = Operators(acl)
    x = some((3, 5, 4), "f16")
    t = on.tensor(x)
    for axis in (0, 1, -1):
        close(on.run("Cumsum", x.shape, "f32", t, axis, 0), np.cumsum(wide(x), axis), "f32")
        got = on.run("ArgMax", np.argmax(x, axis).shape, "i64", t, axis, False)
        np.testing.assert_array_equal(got, np.argmax(x, axis))
        want = np.exp(wide(x)) / np.exp(wide(x)).sum(axis, keepdims=True)
        close(on.run("Softmax", x.shape, "f16", t, axis), want, "f16")
    masked = np.array([[1, 2, -np.inf], [-65504, -65504, -65504]], np.float16)
    got = on.run("Softmax", (2, 3), "f32", on.tensor(masked), -1)
    third = 1 / 3
    close(got, np.array([[1 / (1 + math.e), 1 / (1 + 1 / math.e), 0], [third] * 3]), "f32")
    assert on.refused("Softmax", t, 3, on.empty(x.shape, "f16")) == 161002
    assert on.refused("ArgMax", t, 0, False, on.empty((5, 4), "f16")) == 161002


@simulated()
def test_orders(acl: Acl) -> None:
    on = Operators(acl)
    x = some((3, 50, 2), "f32")
    t = on.tensor(x)
    for descending in (False, True):
        order = np.argsort(-x if descending else x, 1, stable=True)
        values, indices = on.empty(x.shape, "f32"), on.empty(x.shape, "i64")
        on.call("Sort", t, True, 1, descending, values, indices)
        np.testing.assert_array_equal(on.read(indices), order)
        np.testing.assert_array_equal(on.read(values), np.take_along_axis(x, order, 1))
        got = on.run("Argsort", x.shape, "i64", t, 1, descending)
        np.testing.assert_array_equal(got, order)
        values, indices = on.empty((3, 4, 2), "f32"), on.empty((3, 4, 2), "i64")
        on.call("Topk", t, 4, 1, descending, True, values, indices)
        np.testing.assert_array_equal(on.read(indices), order[:, :4])
        np.testing.assert_array_equal(on.read(values), np.take_along_axis(x, order, 1)[:, :4])
    same = on.tensor(np.zeros(4, np.float32))
    np.testing.assert_array_equal(on.run("Argsort", (4,), "i64", same, 0, False), [3, 2, 1, 0])
    values, indices = on.empty((4,), "f32"), on.empty((4,), "i64")
    on.call("Sort", same, True, 0, True, values, indices)
    np.testing.assert_array_equal(on.read(indices), range(4))
    assert on.refused("Argsort", same, 0, False, on.empty((4,), "i32")) == 161002
    assert on.refused("Topk", same, 5, 0, True, True, values, indices) == 161002
    assert on.refused("Sort", same, True, 0, True, None, indices) == 161001


@simulated()
def test_root_mean_squares(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in FLOATS:
        for kind in {dtype, "f32"}:
            x, more, gamma = some((2, 3, 40), dtype), some((2, 3, 40), dtype), some((40,), kind)

            def want(x: Array, gamma: Array = gamma) -> tuple[Array, Array]:
                rstd = 1 / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-3)
                return wide(x) * rstd * wide(gamma), rstd

            y, rstd = on.empty(x.shape, dtype), on.empty((2, 3, 1), "f32")
            by = on.tensor(gamma)
            on.call("RmsNorm", on.tensor(x), by, 1e-3, y, rstd)
            close(on.read(y), want(x)[0], dtype, 2)
            close(on.read(rstd), want(x)[1], "f32", 2)
            both = on.empty(x.shape, dtype)
            on.call("AddRmsNorm", on.tensor(x), on.tensor(more), by, 1e-3, y, rstd, both)
            total = (wide(x) + wide(more)).astype(x.dtype)
            close(on.read(both), total, dtype)
            close(on.read(y), want(total)[0], dtype, 2)
            close(on.read(rstd), want(total)[1], "f32", 2)
    t, by = on.tensor(some((2, 40), "f16")), on.tensor(some((40,), "f16"))
    y = on.empty((2, 40), "f16")
    assert on.refused("RmsNorm", t, by, 1e-5, y, on.empty((2,), "f32")) == 161002
    assert on.refused("RmsNorm", t, by, 1e-5, y, on.empty((2, 1), "f16")) == 161002
    assert on.refused("RmsNorm", t, by, 1e-5, y, None) == 161001
    other = on.tensor(some((40,), "bf16"))
    assert on.refused("RmsNorm", t, other, 1e-5, y, on.empty((2, 1), "f32")) == 161002


@simulated()
def test_layer_and_group_norm(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in FLOATS:
        x, w, b = some((5, 3, 8), dtype), some((3, 8), dtype), some((3, 8), dtype)
        mean = wide(x).mean((1, 2), keepdims=True)
        rstd = 1 / np.sqrt(wide(x).var((1, 2), keepdims=True) + 1e-5)
        plain = (wide(x) - mean) * rstd
        t, y, shape = on.tensor(x), on.empty(x.shape, dtype), on.ints(3, 8)
        on.call("LayerNorm", t, shape, on.tensor(w), on.tensor(b), 1e-5, y, None, None)
        close(on.read(y), plain * wide(w) + wide(b), dtype, 4)
        statistics = on.empty((5, 1, 1), "f32"), on.empty((5, 1, 1), "f32")
        on.call("LayerNorm", t, shape, None, None, 1e-5, y, *statistics)
        close(on.read(y), plain, dtype, 4)
        close(on.read(statistics[0]), mean, "f32", 2)
        close(on.read(statistics[1]), rstd, "f32", 2)

        x, w, b = some((2, 6, 4), dtype), some((6,), dtype), some((6,), dtype)
        groups = wide(x).reshape(2, 3, 8)
        mean, spread = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
        plain = ((groups - mean) / np.sqrt(spread + 1e-5)).reshape(x.shape)
        y, m, r = on.empty(x.shape, dtype), on.empty((2, 3), dtype), on.empty((2, 3), dtype)
        t, gamma, beta = on.tensor(x), on.tensor(w), on.tensor(b)
        on.call("GroupNorm", t, gamma, beta, 2, 6, 4, 3, 1e-5, y, m, r)
        close(on.read(y), plain * wide(w)[:, None] + wide(b)[:, None], dtype, 4)
        close(on.read(m), mean[..., 0], dtype)
        assert on.refused("GroupNorm", t, gamma, beta, 2, 6, 4, 4, 1e-5, y, m, r) == 161002
    wrong = on.ints(8, 3)
    assert on.refused("LayerNorm", t, wrong, None, None, 1e-5, y, None, None) == 161002


@simulated()
def test_gates(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in FLOATS:
        x = some((3, 4, 8), dtype, -3, 3)
        for axis in (-1, 1):
            a, b = (wide(half) for half in np.split(x, 2, axis))
            want = a / (1 + np.exp(-a)) * b
            close(on.run("SwiGlu", want.shape, dtype, on.tensor(x), axis), want, dtype)
            for left in (False, True):
                first, second = (a, b) if left else (b, a)
                gelu = (
                    first
                    / 2
                    * (1 + np.tanh(math.sqrt(2 / math.pi) * (first + 0.044715 * first**3)))
                )
                out, side = on.empty(a.shape, dtype), on.empty(a.shape, dtype)
                on.call("GeGluV3", on.tensor(x), axis, 1, left, out, side)
                close(on.read(out), gelu * second, dtype)
                close(on.read(side), gelu, dtype)
    odd, out = on.tensor(some((2, 5))), on.empty((2, 2), "f32")
    assert on.refused("SwiGlu", odd, 1, out) == 161002
    assert on.refused("SwiGlu", on.tensor(some((2, 8))[:, ::2]), 1, out) == 161002
