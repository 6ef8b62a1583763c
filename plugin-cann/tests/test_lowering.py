"""From nodes to launches, without an NPU: what is claimed, in which form, and why not."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.gguf.types import BF16, F16, F32, I32, DType
from umbel.graph import Builder, Role, Tensor
from umbel.ops import OPS
from umbel_cann.chips import Chip, chip
from umbel_cann.compile import lower, unsupported
from umbel_cann.lowering import Lowering
from umbel_cann.views import View, contiguous, window

SMALL, MIDDLE, LARGE = (chip(f"Ascend{name}") for name in ("310B4", "310P3", "910B3"))


def leaf(*shape: int, dtype: DType = F16, role: Role = Role.INPUT, name: str = "x") -> Tensor:
    return Tensor(shape, dtype, role, name)


def node(op: str, *inputs: Tensor, **attributes: object) -> Tensor:
    return Builder(OPS).apply(OPS[op], *inputs, stored_as=inputs[-1].dtype, **attributes)


def calls(made: Tensor, on: Chip, lacking: tuple[str, ...] = ()) -> list[str]:
    to = Lowering(on, lambda operator: "missing" if operator in lacking else None)
    lower(to, made)
    return [getattr(launch, "operator", "copies") for launch in to.launches]


def test_families() -> None:
    assert [c.name for c in (SMALL, MIDDLE, LARGE)] == ["310B", "310P", "910B"]
    assert chip("Ascend910_9391").name == "910B"
    assert (chip("Ascend910A").name, chip("Ascend1").name) == ("910", "")
    assert (SMALL.dtype, MIDDLE.dtype, LARGE.dtype) == ("f16", "f16", "f32")


def test_other_ways_on_a_small_chip() -> None:
    """What a 310B has no operator for is made of those that it has."""
    x, w = leaf(4, 64), leaf(64, role=Role.WEIGHT, name="w")
    for op, many in (("sqrt", ["Rsqrt", "Rsqrt", "Mul"]), ("exp", ["PowScalarTensor"])):
        assert calls(node(op, x), SMALL) == many
        assert calls(node(op, x), LARGE) == [op.capitalize()]
    assert calls(node("sum_rows", x), SMALL) == ["Mean", "Muls"]
    normed = node("rms_norm", x, w, eps=1e-5)
    assert calls(normed, SMALL) == ["InplaceCopy", "Muls", "LayerNorm", "Mul"]
    assert calls(normed, LARGE) == ["RmsNorm"]
    narrow = node("rms_norm", leaf(4, 8), leaf(8, role=Role.WEIGHT, name="w"), eps=1e-5)
    assert calls(narrow, MIDDLE)[-1] == "Mul"  # rows of less than 32 bytes


def test_a_missing_symbol_is_the_reason() -> None:
    x = leaf(4, 64)
    reason = unsupported(node("silu", x), LARGE, lambda _: "not in this version")
    assert reason == "not in this version"
    assert unsupported(node("relu", x), SMALL, lambda _: None).startswith(
        "aclnnRelu of f16: nobody"
    )
    assert calls(node("concat", x, x, axis=0), LARGE) == ["Cat"]
    assert calls(node("concat", x, x, axis=0), LARGE, ("Cat",)) == ["InplaceCopy"] * 2


@pytest.mark.parametrize(
    ("made", "on", "reason"),
    [
        (node("silu", leaf(4, 8, dtype=F32)), SMALL, "a 310B computes no f32"),
        (node("silu", leaf(4, 8, dtype=BF16)), LARGE, "it has no bf16"),
        (node("top_k", leaf(4, 8), k=2), LARGE, "it has no kernel for top_k"),
        (
            node("soft_max", leaf(2, 4, 8), leaf(4, 8), max_bias=8.0),
            LARGE,
            "soft_max with the slopes of ALiBi",
        ),
        (node("concat", leaf(0, 8), leaf(4, 8), axis=0), LARGE, "it takes no empty tensors"),
    ],
)
def test_refused(made: Tensor, on: Chip, reason: str) -> None:
    assert unsupported(made, on, lambda _: None) == reason


def test_products() -> None:
    """Long rows of many tokens in pieces; heads that share a matrix in one batch."""
    w = leaf(33, 9000, role=Role.WEIGHT, name="w")
    assert calls(node("mul_mat", w, leaf(63, 9000)), SMALL) == ["Mm"]
    long = calls(node("mul_mat", w, leaf(64, 9000)), SMALL)
    assert (long.count("Mm"), long.count("InplaceAdd")) == (3, 2)
    assert calls(node("mul_mat", w, leaf(64, 9000)), LARGE) == ["Mm"]
    k, q = leaf(1, 2, 7, 16, name="k"), leaf(1, 8, 3, 16, name="q")
    assert calls(node("mul_mat", k, q), LARGE) == ["BatchMatMul"]
    k, q = leaf(2, 5, 16, name="k"), leaf(3, 4, 3, 16, name="q")
    assert calls(node("mul_mat", k, q), LARGE) == ["BatchMatMul"] * 3


def test_dtypes_of_products() -> None:
    """A 910B multiplies float32 with float32; other weights meet values that are cast."""
    x = leaf(3, 32, dtype=F32)
    whole, half = (leaf(8, 32, dtype=d, role=Role.WEIGHT, name=d.name) for d in (F32, F16))
    assert calls(node("mul_mat", whole, x), LARGE) == ["Mm"]
    assert calls(node("mul_mat", half, x), LARGE) == ["Cast", "Mm", "Cast"]
    assert calls(node("mul_mat", whole, x), MIDDLE) == ["Cast", "Cast", "Mm", "Cast"]


def test_rows_are_written_by_copies_where_the_host_knows_where() -> None:
    state = leaf(9, 8, role=Role.STATE, name="k_cache")
    ids = leaf(4, dtype=I32, name="cells")
    rows = leaf(4, 8)
    build = Builder(OPS)
    write = build.set_rows(state, rows, ids)
    assert calls(write, SMALL) == ["copies"]
    assert calls(write, LARGE) == ["InplaceIndexCopy"]
    computed = build.set_rows(state, rows, build.view(ids, axis=0, start=0, stop=4))
    assert calls(computed, SMALL) == ["copies"]  # all of them, all the same
    part = build.set_rows(state, leaf(2, 8), build.view(ids, axis=0, start=1, stop=3))
    assert "does not know" in str(unsupported(part, SMALL, lambda _: None))


def test_windows() -> None:
    """Strides, offsets and parts, against NumPy's."""
    build, x = Builder(OPS), leaf(4, 6, 8, dtype=F32)
    t = build.permute(build.view(x, axis=1, start=2, stop=5), axes=(2, 0, 1))
    values = np.arange(4 * 6 * 8, dtype=np.float32)

    def seen(view: View) -> np.ndarray:
        strides = tuple(4 * s for s in view.strides)
        return np.ndarray(view.shape, np.float32, values, 4 * view.offset, strides)

    expected = values.reshape(4, 6, 8)[:, 2:5].transpose(2, 0, 1)
    view = window(t, 0)
    assert view.elements == values.size
    np.testing.assert_array_equal(seen(view), expected)
    np.testing.assert_array_equal(seen(view.part(1, 1, 3)), expected[:, 1:3])
    np.testing.assert_array_equal(seen(view.turned()), expected.swapaxes(1, 2))
    np.testing.assert_array_equal(seen(view.permuted(1, 2, 0)), expected.transpose(1, 2, 0))
    assert not view.dense
    assert contiguous((2, 3, 4)) == (12, 4, 1)
