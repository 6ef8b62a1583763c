"""What chips run, and what they answer where they do not."""

from __future__ import annotations

from ctypes import c_int

import numpy as np
from operators import NCHW, NUMBERS, Operators, close, some
from simulated import Acl, simulated

ZERO = c_int(0)
FLOATS = ("f16", "f32", "bf16")


def unary(on: Operators, name: str, dtype: str) -> int:
    """The code of phase 1; what it made is used up."""
    x, out = on.tensor(some((2, 16), dtype)), on.empty((2, 16), dtype)
    more = (-1,) if name == "Softmax" else ()
    code, size, executor = on.first(name, x, *more, out)
    if code == 0:
        assert on.second(name, size, executor) == 0
    return code


def product(
    on: Operators, m: int, k: int, dtype: str = "f16", kind: int = 0, lead: tuple[int, ...] = ()
) -> int:
    name = "BatchMatMul" if lead else "Mm"
    a, b = (
        on.tensor(np.ones((*lead, m, k), on.empty((1,), dtype).array.dtype)),
        on.empty((*lead, k, 2), dtype),
    )
    code, size, executor = on.first(name, a, b, on.empty((*lead, m, 2), dtype), c_int(kind))
    if code == 0:
        assert on.second(name, size, executor) == 0
    return code


@simulated("310B")
def test_a_310b_runs_float16(acl: Acl) -> None:
    on = Operators(acl)
    for name in ("Silu", "Sigmoid", "Rsqrt", "Neg", "Cos", "Sin", "Softmax"):
        assert [unary(on, name, dtype) for dtype in FLOATS] == [0, 561103, 561103], name
    for name in ("Exp", "Tanh", "Relu", "Sqrt", "Gelu", "Abs", "Log"):
        assert unary(on, name, "f16") == 561103, name
    assert [product(on, 2, 16, dtype) for dtype in FLOATS] == [0, 561103, 561103]
    x, y, one = on.tensor(some((2, 4), "f16")), on.tensor(some((2, 4), "f16")), on.scalar(1)
    close(on.run("Add", (2, 4), "f16", x, y, one), x.array + y.array, "f16")
    wide = on.run("Cast", (2, 4), "f32", x, 0)
    np.testing.assert_array_equal(wide, x.array)
    shape, out = on.ints(4), on.empty((2, 4), "f32")
    f32 = on.tensor(some((2, 4), "f32"))
    assert on.refused("LayerNorm", f32, shape, None, None, 1e-5, out, None, None) == 561103
    half = on.empty((2, 4), "f16")
    on.call("LayerNorm", x, shape, None, None, 1e-5, half, None, None)
    images = on.tensor(some((1, 2, 5, 5), "f16"), form=NCHW)
    kernel, made = (
        on.tensor(some((3, 2, 2, 2), "f16"), form=NCHW),
        on.empty((1, 3, 4, 4), "f16", NCHW),
    )
    two = on.ints(1, 1)
    on.call(
        "Convolution",
        images,
        kernel,
        None,
        two,
        on.ints(0, 0),
        two,
        False,
        on.ints(0, 0),
        1,
        made,
        ZERO,
    )


@simulated("310B")
def test_documented_failures_of_a_310b(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(some((2, 4), "f16")), on.empty((2, 4), "f16")
    index, one = on.empty((2, 4), "i64"), on.scalar(1)
    zeros = on.tensor(np.zeros((2, 4), np.int64))
    mask = on.tensor(np.zeros((2, 4), np.bool_))
    assert on.refused("Gather", x, 0, zeros, out) == 561103
    assert on.refused("Sort", x, True, 1, False, out, index) == 561103
    assert on.refused("Argsort", x, 1, False, index) == 561103
    assert on.refused("Topk", x, 4, 1, True, True, out, index) == 561103
    assert on.refused("Softplus", x, one, one, out) == 561103
    assert on.refused("SWhere", mask, x, x, out) == 561000
    assert on.refused("IndexSelect", x, 0, on.tensor(np.array([0, 1], np.int64)), out) == 561103
    q = on.tensor(some((1, 1, 2, 16), "f16"))
    keys = on.tensors(q), on.tensors(on.tensor(some((1, 1, 2, 16), "f16")))
    given = (q, *keys, None, None, None, 2, 0.25, "BSND", 2, on.empty((1, 1, 2, 16), "f16"))
    assert on.refused("IncreFlashAttention", *given) == 161001
    w, scale = on.tensor(some((4, 8), "i8")), on.tensor(some((1, 8), "f16"))
    arguments = (x, w, scale, None, None, None, None, c_int(0), on.empty((2, 8), "f16"))
    assert on.refused("WeightQuantBatchMatmulV2", *arguments) == 561103
    assert (
        on.refused(
            "RmsNorm", x, on.tensor(some((4,), "f16")), 1e-5, out, on.empty((2, 1), "f32")
        )
        == 561103
    )


@simulated("310B")
def test_deep_products_of_a_310b(acl: Acl) -> None:
    on = Operators(acl)
    for m, k, code in ((63, 4097, 0), (64, 4096, 0), (64, 4097, 361001), (1024, 4096, 0)):
        assert product(on, m, k) == code, f"{m} {k}"
    assert product(on, 64, 4097, lead=(2,)) == 0  # of which nobody has told that


@simulated("310B", UMBEL_CANN_FAULT="deep=BatchMatMul")
def test_deep_batches_where_they_are_asked_for(acl: Acl) -> None:
    on = Operators(acl)
    for m, k, code in ((63, 4097, 0), (64, 4096, 0), (64, 4097, 361001)):
        assert product(on, m, k, lead=(2,)) == code, f"{m} {k}"
    assert product(on, 64, 4097) == 361001


@simulated("310B")
def test_an_add_over_its_input_spoils_later_products_of_a_310b(acl: Acl) -> None:
    on = Operators(acl)
    x, y, one = on.tensor(some((2, 4), "f16")), on.tensor(some((2, 4), "f16")), on.scalar(1)
    on.call("InplaceAdd", x, y, one)
    assert product(on, 2, 16) == 0
    on.call("Add", x, y, one, x)
    assert product(on, 2, 16) == 361001


@simulated("310P")
def test_a_310p_has_no_bf16_and_no_attention(acl: Acl) -> None:
    on = Operators(acl)
    for name in ("Silu", "Exp", "Tanh", "Softmax"):
        assert [unary(on, name, dtype) for dtype in FLOATS] == [0, 0, 561103], name
    assert product(on, 2, 16, "bf16") == 561103
    assert [product(on, 2, 16, "f32", kind) for kind in (0, 1, 2)] == [161002, 0, 0]
    q = on.tensor(some((1, 1, 2, 16), "f16"))
    given = (q, on.tensors(q), on.tensors(q), None, None, None, 2, 0.25, "BSND", 2, q)
    assert on.refused("IncreFlashAttention", *given) == 561103
    index = on.tensor(np.zeros((2, 4), np.int64))
    assert (
        on.refused("Gather", on.tensor(some((2, 4))), 0, index, on.empty((2, 4), "f32"))
        == 561103
    )


@simulated("310P")
def test_alignment_and_weights_of_a_310p(acl: Acl) -> None:
    on = Operators(acl)
    for n, code in ((15, 161002), (16, 0)):
        x, gamma = on.tensor(some((2, n), "f16")), on.tensor(some((n,), "f16"))
        y, rstd = on.empty((2, n), "f16"), on.empty((2, 1), "f32")
        assert on.first("RmsNorm", x, gamma, 1e-5, y, rstd)[0] == code
    for n, code in ((48, 161002), (64, 0)):
        x, y = on.tensor(some((2, n), "f16")), on.empty((2, n // 2), "f16")
        assert on.first("SwiGlu", x, -1, y)[0] == code
    x, scale = on.tensor(some((2, 64), "f16")), on.tensor(some((1, 8), "f16"))
    rest = (scale, None, None, None, None, c_int(0), on.empty((2, 8), "f16"))
    on.call("WeightQuantBatchMatmulV2", x, on.tensor(some((64, 8), "i8")), *rest)
    words = on.tensor(some((64, 1), "i32"))
    assert on.refused("WeightQuantBatchMatmulV2", x, words, *rest) == 161002


@simulated("910B")
def test_strided_views_of_a_910b(acl: Acl) -> None:
    on = Operators(acl)
    view, out = on.tensor(some((4, 4), "f16").T), on.empty((4, 4), "f16")
    for name in ("Silu", "Neg"):
        assert on.refused(name, view, out) == 561103
    on.call("Abs", view, out)
    a, b = some((2, 4, 4), "f16").transpose(0, 2, 1), some((2, 4, 4), "f16")
    made = on.empty((2, 4, 4), "f16")
    assert on.refused("Matmul", on.tensor(a), on.tensor(b), made, ZERO) == 561103
    on.call("BatchMatMul", on.tensor(a), on.tensor(b), made, ZERO)
    on.call("Matmul", view, out, on.empty((4, 4), "f16"), ZERO)


@simulated("910B")
def test_a_failed_cat_spoils_the_next_ones_of_a_910b(acl: Acl) -> None:
    on = Operators(acl)
    whole, view = on.tensor(some((2, 4))), on.tensor(some((4, 2)).T)
    out = on.empty((4, 4), "f32")
    on.call("Cat", on.tensors(whole, whole), 0, out)
    assert on.refused("Cat", on.tensors(whole, view), 0, out) == 561103
    assert on.refused("Cat", on.tensors(whole, whole), 0, out) == 561103


@simulated("910B")
def test_every_dtype_of_a_910b_moves(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in NUMBERS:
        x = np.ones((2, 3), dtype)
        out = on.tensor(np.zeros((3, 2), dtype))
        on.call("Permute", on.tensor(x), on.ints(1, 0), out)
        np.testing.assert_array_equal(on.read(out), x.T)
