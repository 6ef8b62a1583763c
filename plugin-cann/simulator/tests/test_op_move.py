"""Operators that move, choose or make values."""

from __future__ import annotations

import numpy as np
from operators import Operators, close, some
from simulated import Acl, simulated

ANY = ("f32", "f16", "bf16", "i32", "i64", "i8", "bool")


@simulated()
def test_permute_slice_and_pad(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in ANY:
        x = some((2, 3, 4, 5), dtype)
        t = on.tensor(x)
        want = x.transpose(2, 0, 3, 1)
        close(on.run("Permute", want.shape, dtype, t, on.ints(2, 0, -1, 1)), want, dtype)
        want = x[:, :, 1:4:2]
        close(on.run("Slice", want.shape, dtype, t, 2, 1, 4, 2), want, dtype)
        close(on.run("Slice", (2, 3, 4, 2), dtype, t, -1, -2, 99, 1), x[..., -2:], dtype)
        want = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 0), (2, 3)), constant_values=1)
        got = on.run("ConstantPadNd", want.shape, dtype, t, on.ints(2, 3, 1, 0), on.scalar(1))
        close(got, want, dtype)
    out = on.empty((2, 3, 4, 5), "f32")
    t = on.tensor(some((2, 3, 4, 5)))
    assert on.refused("Permute", t, on.ints(0, 1, 2, 3, 4), out) == 161002
    assert on.refused("Permute", t, on.ints(0, 1, 2, 2), out) == 161002
    assert on.refused("Permute", t, on.ints(1, 0, 2, 3), out) == 161002
    assert on.refused("Permute", t, None, out) == 161001
    assert on.refused("Slice", t, 4, 0, 1, 1, out) == 161002
    assert on.refused("Slice", t, 0, 0, 1, 1, out) == 161002
    assert on.refused("ConstantPadNd", t, on.ints(1), on.scalar(0), out) == 161002


@simulated()
def test_cat_and_repeats(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in ANY:
        parts = [some((2, n, 3), dtype) for n in (1, 4, 2)]
        want = np.concatenate(parts, 1)
        lists = on.tensors(*map(on.tensor, parts))
        close(on.run("Cat", want.shape, dtype, lists, 1), want, dtype)
        x = some((2, 3), dtype)
        for repeats in ((1, 2), (3, 1), (2, 1, 3)):
            want = np.tile(x, repeats)
            close(
                on.run("Repeat", want.shape, dtype, on.tensor(x), on.ints(*repeats)),
                want,
                dtype,
            )
        want = np.repeat(x, 3, 1)
        got = on.run("RepeatInterleaveIntWithDim", (2, 9), dtype, on.tensor(x), 3, 1, 9)
        close(got, want, dtype)
    many = [some((1, 3)) for _ in range(40)]
    lists = on.tensors(*map(on.tensor, many))
    close(on.run("Cat", (40, 3), "f32", lists, 0), np.concatenate(many), "f32")
    out, t = on.empty((2, 6), "f32"), on.tensor(some((2, 3)))
    assert on.refused("Cat", on.tensors(t, t), 0, out) == 161002
    assert on.refused("Cat", on.tensors(t, t, t), 1, out) == 161002
    assert on.refused("Cat", None, 1, out) == 161001
    assert on.refused("Repeat", t, on.ints(2, 2), out) == 161002
    assert on.refused("RepeatInterleaveIntWithDim", t, 2, 1, 5, out) == 161002


@simulated()
def test_rows_by_index(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in ("f32", "f16", "i64"):
        for kind in ("i32", "i64"):
            x = some((7, 2, 5), dtype)
            index = np.array([3, 0, 6, 3]).astype(on.empty((1,), kind).array.dtype)
            by = on.tensor(index)
            close(on.run("IndexSelect", (4, 2, 5), dtype, on.tensor(x), 0, by), x[index], dtype)
            want = x[:, :, index[:2]]
            got = on.run(
                "IndexSelect", want.shape, dtype, on.tensor(x), -1, on.tensor(index[:2] % 5)
            )
            close(got, x[:, :, index[:2] % 5], dtype)
            two = index.reshape(2, 2)
            got = on.run("GatherV2", (2, 2, 2, 5), dtype, on.tensor(x), 0, on.tensor(two))
            close(got, x[two], dtype)
            table = x[:, 0].copy()
            got = on.run("Embedding", (2, 2, 5), dtype, on.tensor(table), on.tensor(two))
            close(got, table[two], dtype)
            into, rows = on.tensor(x), some((3, 2, 5), dtype)
            on.call("InplaceIndexCopy", into, 0, on.tensor(index[:3]), on.tensor(rows))
            want = x.copy()
            want[index[:3]] = rows
            close(on.read(into), want, dtype)
    turned, rows = on.tensor(some((4, 6)).T), some((2, 4))
    on.call(
        "InplaceIndexCopy", turned, 0, on.tensor(np.array([5, 1], np.int64)), on.tensor(rows)
    )
    close(on.read(turned)[[5, 1]], rows, "f32")


@simulated()
def test_indices_outside(acl: Acl) -> None:
    on = Operators(acl)
    x = on.tensor(some((4, 3)))
    for name, index, fault in (
        ("Embedding", -1, True),
        ("Embedding", 4, False),  # nobody checks: junk
        ("IndexSelect", 4, True),
        ("IndexSelect", -1, True),
    ):
        out, by = on.empty((1, 3), "f32"), on.tensor(np.array([index], np.int64))
        arguments = (x, by, out) if name == "Embedding" else (x, 0, by, out)
        code, size, executor = on.first(name, *arguments)
        assert (code, on.second(name, size, executor)) == (0, 0)
        assert (acl.aclrtSynchronizeStream(None) == 507015) == fault
    out = on.empty((1, 3), "f32")
    assert on.refused("IndexSelect", x, 0, on.tensor(some((1,))), out) == 161002
    assert on.refused("IndexSelect", x, 0, on.tensor(np.array([[1]], np.int64)), out) == 161002
    assert on.refused("IndexSelect", x, 1, on.tensor(np.array([1], np.int64)), out) == 161002
    half = on.empty((1, 3), "f16")
    assert on.refused("GatherV2", x, 0, on.tensor(np.array([1], np.int64)), half) == 161002


@simulated()
def test_elements_by_index(acl: Acl) -> None:
    on = Operators(acl)
    x = some((4, 5, 3), "f16")
    index = np.random.default_rng(2).integers(0, 5, (4, 2, 3))
    want = np.take_along_axis(x, index, 1)
    close(on.run("Gather", want.shape, "f16", on.tensor(x), 1, on.tensor(index)), want, "f16")
    index = np.argsort(np.random.default_rng(2).uniform(size=(4, 5, 3)), 1)[:, :2]
    source = some(index.shape, "f16")
    t, by, s = on.tensor(x), on.tensor(index), on.tensor(source)
    want = x.copy()
    np.put_along_axis(want, index, source, 1)
    close(on.run("Scatter", x.shape, "f16", t, 1, by, s, 0), want, "f16")
    np.put_along_axis(want, index, np.take_along_axis(x, index, 1) + source, 1)
    close(on.run("Scatter", x.shape, "f16", t, 1, by, s, 1), want, "f16", 2)
    np.put_along_axis(want, index, np.take_along_axis(x, index, 1) * source, 1)
    close(on.run("Scatter", x.shape, "f16", t, 1, by, s, 2), want, "f16", 2)
    assert on.refused("Gather", t, 1, on.tensor(index[0]), on.empty((2, 3), "f16")) == 161002


@simulated()
def test_values_by_position(acl: Acl) -> None:
    on = Operators(acl)
    for start, end, step, dtype in ((0, 7, 1, "f32"), (2, -3, -2, "i64"), (0, 1, 0.25, "f16")):
        want = np.arange(start, end, step)
        scalars = on.scalar(start), on.scalar(end), on.scalar(step)
        close(on.run("Arange", want.shape, dtype, *scalars), want, dtype)
        assert on.refused("Arange", *scalars, on.empty((99,), dtype)) == 161002
    x = some((2, 4, 5), "f32")
    for diagonal in (-2, 0, 1):
        close(
            on.run("Tril", x.shape, "f32", on.tensor(x), diagonal), np.tril(x, diagonal), "f32"
        )
        close(
            on.run("Triu", x.shape, "f32", on.tensor(x), diagonal), np.triu(x, diagonal), "f32"
        )


@simulated()
def test_values_by_mask(acl: Acl) -> None:
    on = Operators(acl)
    mask = np.random.default_rng(3).uniform(size=(3, 1)) < 0.5
    a, b = some((3, 4), "f16"), some((4,), "f16")
    got = on.run("SWhere", (3, 4), "f16", on.tensor(mask), on.tensor(a), on.tensor(b))
    close(got, np.where(mask, a, b), "f16")
    into = on.tensor(a)
    on.call("InplaceMaskedFillScalar", into, on.tensor(mask), on.scalar(-5))
    close(on.read(into), np.where(mask, np.float16(-5), a), "f16")
    out = on.empty((3, 4), "f16")
    assert on.refused("SWhere", on.tensor(a), on.tensor(a), on.tensor(b), out) == 161002
