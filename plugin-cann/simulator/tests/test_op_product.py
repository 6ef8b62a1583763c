"""Products of matrices: shapes, transposed views, precision, quantised weights, FRACTAL_NZ."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint64, c_void_p

import numpy as np
from operators import FRACTAL_NZ, INT4, Array, Operators, close, some
from simulated import Acl, simulated

BYTE = c_int  # an int8_t argument is passed as an int
KEEP, DOWN, USE_F16, USE_HF32 = range(4)


def product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def multiply(
    on: Operators, name: str, a: Array, b: Array, dtype: str, kind: int = KEEP
) -> Array:
    shape = np.matmul(a.astype(np.float32), b.astype(np.float32)).shape
    out = on.empty(shape, dtype)
    on.call(name, on.tensor(a), on.tensor(b), out, BYTE(kind))
    return on.read(out)


@simulated()
def test_mm_of_any_size_and_dtype(acl: Acl) -> None:
    on = Operators(acl)
    for m, k, n in ((1, 64, 48), (5, 33, 17), (4, 1, 1), (37, 100, 70), (1, 1, 40), (2, 7, 16)):
        for dtype in ("f16", "bf16", "f32"):
            a, b = some((m, k), dtype), some((k, n), dtype)
            scale = k**0.5 * 2
            close(multiply(on, "Mm", a, b, dtype), product(a, b), dtype, scale, f"{m} {k} {n}")
            turned = np.ascontiguousarray(b.T).T
            got = multiply(on, "Mm", a, turned, dtype)
            close(got, product(a, b), dtype, scale, f"{m} {k} {n} transposed")


@simulated()
def test_a_row_does_not_depend_on_the_others(acl: Acl) -> None:
    on = Operators(acl)
    a, b = some((9, 130), "f32"), some((130, 50), "f32")
    whole = multiply(on, "Mm", a, b, "f32")
    for row in range(9):
        np.testing.assert_array_equal(
            multiply(on, "Mm", a[row : row + 1].copy(), b, "f32"), whole[row : row + 1]
        )


@simulated()
def test_sums_are_kept_in_float32(acl: Acl) -> None:
    on = Operators(acl)
    a, b = np.full((1, 4096), 1, np.float16), np.full((4096, 1), 1, np.float16)
    assert multiply(on, "Mm", a, b, "f16")[0, 0] == 4096  # in float16 it would end at 2048


@simulated()
def test_batches_and_vectors(acl: Acl) -> None:
    on = Operators(acl)
    for n in (3, 1):
        x, y = some((3, 4, 5), "f16"), some((n, 5, 6), "f16")
        close(multiply(on, "BatchMatMul", x, y, "f16"), product(x, y), "f16", 4)
    turned = some((3, 6, 5), "f16").transpose(0, 2, 1)
    x = some((3, 4, 5), "f16")
    close(multiply(on, "BatchMatMul", x, turned, "f16"), product(x, turned), "f16", 4)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (2, 5, 6)),
        ((4, 5), (5, 6)),
    ]
    for a, b in shapes:
        x, y = some(a, "f32"), some(b, "f32")
        close(multiply(on, "Matmul", x, y, "f32"), product(x, y), "f32", 4, f"{a} {b}")
    x, y = some((4, 5), "f32"), some((5,), "f32")
    close(multiply(on, "Mv", x, y, "f32"), product(x, y), "f32", 4)


@simulated()
def test_what_is_added(acl: Acl) -> None:
    on = Operators(acl)
    a, b = some((3, 4), "f32"), some((4, 5), "f32")
    alpha, beta = on.scalar(2), on.scalar(0.5)
    for shape in ((3, 5), (5,), (1, 5), (3, 1)):
        c, out = some(shape, "f32"), on.empty((3, 5), "f32")
        on.call("Addmm", on.tensor(c), on.tensor(a), on.tensor(b), beta, alpha, out, BYTE(0))
        close(on.read(out), 2 * product(a, b) + 0.5 * c, "f32", 8, f"{shape}")
    a, b, c = some((2, 3, 4), "f32"), some((2, 4, 5), "f32"), some((2, 3, 5), "f32")
    out = on.empty((2, 3, 5), "f32")
    on.call("Baddbmm", on.tensor(c), on.tensor(a), on.tensor(b), beta, alpha, out, BYTE(0))
    close(on.read(out), 2 * product(a, b) + 0.5 * c, "f32", 8)


@simulated()
def test_precision_of_float32(acl: Acl) -> None:
    on = Operators(acl)
    a, b = some((8, 64), "f32"), some((64, 8), "f32")
    want = product(a, b)

    def error(kind: int) -> float:
        got = multiply(on, "Mm", a, b, "f32", kind)
        return float(((got - want) ** 2).sum() / (want**2).sum())

    half = product(a.astype(np.float16), b.astype(np.float16))
    close(multiply(on, "Mm", a, b, "f32", USE_F16), half, "f32", 16)
    assert error(KEEP) < 1e-13
    assert 1e-9 < error(USE_HF32) < 1e-6
    assert error(DOWN) == error(USE_HF32)


@simulated()
def test_products_that_do_not_fit_are_refused(acl: Acl) -> None:
    on = Operators(acl)
    a, b, out = (on.tensor(some(s, "f16")) for s in ((3, 4), (4, 5), (3, 5)))
    f32, wrong = on.tensor(some((4, 5), "f32")), on.tensor(some((5, 4), "f16"))
    zero = BYTE(0)
    assert on.refused("Mm", None, b, out, zero) == 161001
    assert on.refused("Mm", a, wrong, out, zero) == 161002
    assert on.refused("Mm", a, b, a, zero) == 161002
    assert on.refused("Mm", a, f32, out, zero) == 161002
    assert on.refused("Mm", a, b, out, BYTE(5)) == 161002
    assert on.refused("Mm", a, b, on.tensor(some((5, 3), "f16").T), zero) == 161002
    assert on.refused("BatchMatMul", a, b, out, zero) == 161002
    ints = on.tensor(some((3, 4), "i32")), on.tensor(some((4, 5), "i32"))
    assert on.refused("Mm", *ints, out, zero) == 161002
    code, size, executor = on.first("Mm", a, b, out, zero)
    assert (code, size > 0) == (0, True)
    assert on.api.aclnnMm(None, c_uint64(size), c_void_p(executor), None) == 161001


@simulated()
def test_weights_in_fractal_nz(acl: Acl) -> None:
    on = Operators(acl)
    for rows, columns in ((32, 48), (20, 35)):
        a, w = some((3, rows), "f16"), some((rows, columns), "f16")
        size = c_uint64()
        shape = on.ints(rows, columns)
        assert (
            on.api.aclnnCalculateMatmulWeightSizeV2(c_void_p(shape.handle), 1, byref(size)) == 0
        )
        padded = -(-rows // 16) * 16, -(-columns // 16) * 16
        assert size.value == padded[0] * padded[1]
        room = np.zeros(size.value, np.float16)
        room[: w.size] = w.ravel()
        weight = on.tensor(room)
        weight.handle = on.describe(w.shape, 1, None, 0, 2, [w.size], weight.at)
        on.call("TransMatmulWeight", weight)
        blocks: Array = np.zeros(padded, np.float16)
        blocks[:rows, :columns] = w
        blocks = blocks.reshape(padded[0], -1, 16).transpose(1, 0, 2)
        np.testing.assert_array_equal(on.read(weight), blocks.ravel())

        storage = [padded[1] // 16, padded[0] // 16, 16, 16]
        nz = on.describe(w.shape, 1, None, 0, FRACTAL_NZ, storage, weight.at)
        out, weight.handle = on.empty((3, columns), "f16"), nz
        on.call("Mm", on.tensor(a), weight, out, BYTE(0))
        close(on.read(out), product(a, w), "f16", 12)
        turned = on.describe(
            (columns, rows), 1, [1, columns], 0, FRACTAL_NZ, storage, weight.at
        )
        weight.handle = turned
        a, out = some((3, columns), "f16"), on.empty((3, rows), "f16")
        on.call("Mm", on.tensor(a), weight, out, BYTE(0))
        close(on.read(out), product(a, w.T), "f16", 12)
    left = on.tensor(a)
    left.handle = on.describe(a.shape, 1, None, 0, FRACTAL_NZ, [a.size], left.at)
    assert on.refused("Mm", left, on.tensor(w.T.copy()), out, BYTE(0)) == 161002
    assert on.api.aclnnCalculateMatmulWeightSize(c_void_p(shape.handle), byref(size)) == 0
    assert size.value == padded[0] * padded[1]
    assert on.api.aclnnCalculateMatmulWeightSizeV2(c_void_p(shape.handle), 2, byref(size)) == 0
    assert size.value == 32 * 64  # int8 has blocks of 32 columns
    assert on.api.aclnnCalculateMatmulWeightSize(None, byref(size)) == 161001


def packed(values: Array) -> Array:
    """int4, two to a byte."""
    low, high = values.reshape(-1, 2).T & 15
    return np.asarray((low | high << 4).astype(np.uint8))


def quantised(
    on: Operators,
    turned: bool,
    bits: int,
    group: int,
    offsets: bool,
    version: str = "V2",
    dtype: str = "f16",
) -> None:
    """(k, n) weights and (groups, n) scales, as they are or as transposed views."""
    m, k, n = 3, 96, 40
    groups = -(-k // group) if group else 1
    rng = np.random.default_rng(k + bits)
    w = rng.integers(-(1 << bits - 1), 1 << bits - 1, (n, k) if turned else (k, n)).astype(
        np.int8
    )
    scale = some((n, groups) if turned else (groups, n), dtype, 0.01, 0.1)
    shift = some(scale.shape, dtype) if offsets else None
    x, bias = some((m, k), dtype), some((n,), dtype)
    weight = on.tensor(w.T if turned else w)
    if bits == 4:
        at = on.tensor(packed(w)).at
        strides = [1, k] if turned else [n, 1]
        weight.handle = on.describe([k, n], INT4, strides, 0, 2, [k * n], at)
    flat = [t if t is None else on.tensor(t.T if turned else t) for t in (scale, shift)]
    out = on.empty((m, n), dtype)
    more = (c_int(1),) if version == "V3" else ()
    on.call(
        f"WeightQuantBatchMatmul{version}",
        on.tensor(x),
        weight,
        *flat,
        None,
        None,
        on.tensor(bias),
        c_int(group),
        *more,
        out,
    )
    by = [0 if t is None else (t.T if turned else t).astype(np.float64) for t in (scale, shift)]
    each = group or k
    wide = [b if isinstance(b, int) else np.repeat(b, each, 0)[:k] for b in by]
    want = x.astype(np.float64) @ (((w.T if turned else w) + wide[1]) * wide[0]) + bias
    what = f"{turned} {bits} {group} {offsets} {dtype}"
    close(on.read(out), want, dtype, 24, what)


@simulated()
def test_quantised_weights(acl: Acl) -> None:
    on = Operators(acl)
    for turned in (False, True):
        for bits in (8, 4):
            for group in (0, 32, 64):
                quantised(on, turned, bits, group, offsets=group == 32)
    quantised(on, True, 4, 32, offsets=True, version="V3")
    quantised(on, True, 4, 32, offsets=False, dtype="bf16")


@simulated()
def test_int4_may_come_in_words(acl: Acl) -> None:
    on = Operators(acl)
    k, n = 64, 24
    x = some((2, k), "f16")
    rng = np.random.default_rng(1)
    for turned in (False, True):
        w = rng.integers(-8, 8, (n, k) if turned else (k, n)).astype(np.int8)
        words = packed(w).view(np.int32).reshape(w.shape[0], -1)
        scale = some((1, n), "f16", 0.1, 1)
        out = on.empty((2, n), "f16")
        on.call(
            "WeightQuantBatchMatmulV2",
            on.tensor(x),
            on.tensor(words.T if turned else words),
            on.tensor(scale),
            None,
            None,
            None,
            None,
            c_int(0),
            out,
        )
        want = x.astype(np.float64) @ ((w.T if turned else w) * scale.astype(np.float64))
        close(on.read(out), want, "f16", 64)


@simulated()
def test_rules_of_quantised_weights(acl: Acl) -> None:
    on = Operators(acl)
    k, n = 96, 40
    x, out = on.tensor(some((3, k), "f16")), on.empty((3, n), "f16")
    w = on.tensor(some((k, n), "i8"))
    turned = on.tensor(some((n, k), "i8").T)
    name = "WeightQuantBatchMatmulV2"

    def code(weight: object, scale: Array, group: int, x: object = x) -> int:
        return on.refused(
            name, x, weight, on.tensor(scale), None, None, None, None, c_int(group), out
        )

    assert code(w, some((3, n), "f16"), 33) == 161002
    assert code(w, some((3, n), "f16"), 96) == 161002
    assert code(w, some((2, n), "f16"), 32) == 161002
    assert code(turned, some((3, n), "f16"), 32) == 161002  # the scale has to be transposed too
    assert code(w, some((n, 3), "f16").T, 32) == 161002
    assert code(on.tensor(some((k, 2 * n), "i8")[:, ::2]), some((3, n), "f16"), 32) == 161002
    assert code(w, some((3, n), "f16"), 32, on.tensor(some((3, k), "f32"))) == 161002
    assert code(None, some((3, n), "f16"), 32) == 161001
    long = on.tensor(some((1, 65536), "f16")), on.tensor(some((65536, 1), "i8"))
    scale, one = on.tensor(some((1, 1), "f16")), on.empty((1, 1), "f16")
    assert on.refused(name, *long, scale, None, None, None, None, c_int(0), one) == 161002
