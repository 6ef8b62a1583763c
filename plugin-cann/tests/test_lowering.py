"""From nodes to launches, without an NPU: what is claimed, in which form, and why not."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from umbel.gguf.types import BF16, BY_NAME, F16, F32, I32, DType
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot
from umbel.ops import OPS
from umbel_cann.chips import Chip, chip
from umbel_cann.compile import lower, unsupported
from umbel_cann.lowering import Lowering
from umbel_cann.program import Call
from umbel_cann.views import NCL, Scalar, View, contiguous, window

SMALL, MIDDLE, LARGE = (chip(f"Ascend{name}") for name in ("310B4", "310P3", "910B3"))


def leaf(*shape: int, dtype: DType = F16, role: Role = Role.INPUT, name: str = "x") -> Tensor:
    return Tensor(shape, dtype, role, name)


def node(op: str, *inputs: Tensor, **attributes: object) -> Tensor:
    dtype = next(t.dtype for t in reversed(inputs) if t.dtype is not I32)
    return Builder(OPS).apply(OPS[op], *inputs, stored_as=dtype, **attributes)


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
    assert calls(normed, SMALL) == ["Mul", "LayerNorm", "Mul"]
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
        (node("reglu", leaf(4, 8), leaf(4, 8)), LARGE, "it has no kernel for reglu"),
        (
            node("top_k", leaf(4, 8), k=2),
            SMALL,
            "aclnnSort of f16: nobody has seen it work on a 310B",
        ),
        (
            node("softplus", leaf(4, 8)),
            MIDDLE,
            "aclnnSoftplus might lose small results in float16",
        ),
        (
            node("mul_mat_id", leaf(6, 9, 32), leaf(4, 1, 32), leaf(4, 2, dtype=I32)),
            SMALL,
            "4 x 2 matrices would be copied, of 6",
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


def test_rows_of_several_matrices() -> None:
    """As of one table; without sums of integers, by products with ones."""
    rows, ids = leaf(4, 9, 5), leaf(4, 3, dtype=I32)
    assert calls(node("get_rows", rows, ids), LARGE) == ["Add", "GatherV2"]
    assert calls(node("get_rows", rows, ids), SMALL) == ["Embedding", "BatchMatMul"]
    one = node("get_rows", leaf(1, 9, 5), leaf(1, 3, dtype=I32))
    assert calls(one, SMALL) == ["Embedding"]


def test_experts() -> None:
    """The matrices of those that were chosen, in one product."""
    w = leaf(8, 9, 32, role=Role.WEIGHT, name="w")
    for own in (1, 2):
        made = node("mul_mat_id", w, leaf(4, own, 32), leaf(4, 2, dtype=I32))
        assert calls(made, SMALL) == ["Embedding", "BatchMatMul"]
        assert calls(made, MIDDLE) == ["GatherV2", "BatchMatMul"]


def test_experts_of_few_bits() -> None:
    """Of large ones a token's are copied as words, and it takes one product; where they are
    more columns than that has, or where words cannot be copied, it is other products."""
    w = leaf(128, 768, 2048, dtype=BY_NAME["q4_k"], role=Role.WEIGHT, name="w")
    down = leaf(128, 2048, 768, dtype=BY_NAME["q8_0"], role=Role.WEIGHT, name="down")
    wide = leaf(128, 9000, 768, dtype=BY_NAME["q8_0"], role=Role.WEIGHT, name="wide")

    def made(w: Tensor, n: int, own: int) -> Tensor:
        return node("mul_mat_id", w, leaf(n, own, w.shape[2]), leaf(n, 8, dtype=I32))

    product = "WeightQuantBatchMatmulV2"
    assert calls(made(w, 1, 1), LARGE) == ["GatherV2"] * 3 + [product]
    assert calls(made(down, 1, 8), MIDDLE) == ["GatherV2"] * 2 + [product, "InplaceCopy"]
    assert calls(made(down, 5, 8), LARGE).count(product) == 5
    assert calls(made(down, 6, 8), LARGE) == [product] * 8 + ["GatherV2", "Add", "GatherV2"]
    assert calls(made(wide, 1, 8), LARGE) == ["GatherV2"] * 2 + [product] * 8
    many = calls(made(w, 4000, 1), LARGE)
    assert many == ([product] * 2 + ["GatherV2", "Add", "GatherV2"]) * 2
    blind = attrs.evolve(LARGE, operators={"GatherV2": {"i32": "it computes wrong numbers"}})
    told = unsupported(made(w, 1, 1), blind, lambda _: None)
    assert told == "aclnnGatherV2 of i32: it computes wrong numbers"
    build, x = Builder(OPS), leaf(1, 8, 2048)
    every = build.mul_mat(build.reshape(w, shape=(128 * 768, 2048)), x)  # the decomposition
    assert calls(every, blind).count(product) == 2


def test_soft_maxima() -> None:
    """All forms of it, of what any chip has."""
    scores, mask = leaf(1, 4, 3, 7), leaf(1, 1, 3, 7, name="mask")
    for chip_ in (SMALL, MIDDLE, LARGE):
        assert calls(node("soft_max", scores), chip_).count("Softmax") == 1
        plain = calls(node("soft_max", scores, mask), chip_)
        assert plain == ["Adds", "Sigmoid", "Add", "Softmax", "Mul"]
        sloped = calls(node("soft_max", scores, mask, max_bias=8.0), chip_)
        assert sloped[-3:] == ["Add", "Softmax", "Mul"]
        assert len(sloped) == len(plain) + 5  # of all layers together
    q, k, v = (leaf(1, n, t, 16, name=w) for n, t, w in ((4, 3, "q"), (2, 7, "k"), (2, 7, "v")))
    sinks = leaf(4, role=Role.WEIGHT, name="sinks")
    made = node("flash_attn_ext", q, k, v, mask, sinks, scale=0.25, logit_softcap=5.0)
    assert "Tanh" in calls(made, LARGE)
    assert "Tanh" not in calls(made, SMALL)


def test_a_convolution_copies_nothing() -> None:
    x, kernel = leaf(2, 24, 9), leaf(24, 4, role=Role.WEIGHT, name="kernel")
    made = node("ssm_conv", x, kernel)  # (2, 6, 24)
    for chip_, how in ((SMALL, 0), (MIDDLE, 1), (LARGE, 0)):
        to = Lowering(chip_, lambda _: None)
        lower(to, made)
        (launch,) = to.launches
        assert launch.operator == "Convolution"
        seen = [a for a in launch.arguments if isinstance(a, View)]
        assert [v.shape for v in seen] == [(2, 24, 9), (24, 1, 4), (2, 24, 6)]
        assert [v.strides for v in seen] == [(216, 9, 1), (4, 4, 1), (144, 1, 24)]
        assert {v.format for v in seen} == {NCL}
        assert (launch.arguments[8], launch.arguments[-1]) == (24, how)
        assert to.scratch.peak == to.scratch.lasting == 0


def scan(tokens: int, dtype: DType, decays: int = 1) -> Tensor:
    state = leaf(3, 6, 4, 8, dtype=F32, role=Role.STATE, name="ssm.0")
    x, dt = leaf(2, tokens, 6, 4, dtype=dtype), leaf(2, tokens, 6, dtype=dtype, name="dt")
    a = leaf(6, decays, dtype=dtype, role=Role.WEIGHT, name="a")
    b, c = (leaf(2, tokens, 2, 8, dtype=dtype, name=name) for name in "bc")
    return node("ssm_scan", state, x, dt, a, b, c, leaf(2, dtype=I32, name="ids"))


def test_a_scan() -> None:
    """Few launches for a token; three more for each doubling of many, or as many for 64."""
    one = calls(scan(1, F32), LARGE)
    products = ["Mul", "Mul", "Exp", "Mul", "Mul", "Add"]
    assert one == ["GatherV2", "Softplus", *products, "BatchMatMul"]
    doubled = [len(calls(scan(n, F32, decays=8), LARGE)) for n in (2, 4, 8, 512)]
    assert np.diff(doubled).tolist() == [3, 3, 18]
    assert doubled[0] == len(one) + 3
    few, some, many = (calls(scan(n, F32), LARGE) for n in (8, 64, 128))
    assert few.count("BatchMatMul") == 1
    assert some.count("BatchMatMul") == 4
    assert len(some) < len(few) + 5
    assert many.count("BatchMatMul") == 8
    assert "Mm" not in calls(scan(64, F16), MIDDLE)  # it has no products of float32
    small = calls(scan(1, F16), SMALL)
    assert {"Norm", "PowScalarTensor"} <= set(small)
    assert not {"Softplus", "Exp", "ReduceSum"} & set(small)
    middle = calls(scan(1, F16), MIDDLE)
    assert middle[-2:] == ["ReduceSum", "Cast"]
    assert "BatchMatMul" not in middle


@attrs.frozen
class Place:
    """Memory that is somewhere."""

    handle: int = 0
    nbytes = 1 << 30


def test_what_is_too_large_is_kept_divided() -> None:
    """From the scan to the next norm; what others read is as it is meant."""
    build, made = Builder(OPS), scan(1, F16)
    y = build.view(made, axis=0, start=0, stop=48)
    x, w = leaf(48, name="x"), leaf(48, role=Role.WEIGHT, name="w")
    sum_ = build.apply(OPS["add"], x, y, stored_as=F16)
    normed = build.apply(OPS["rms_norm"], sum_, w, eps=1e-5, stored_as=F16)
    other = build.apply(OPS["silu"], sum_, stored_as=F16)
    nodes = (made, sum_, normed, other)
    leaves = {t.storage for n in nodes for t in (n, *n.inputs)}
    slots = {t: Slot(Place()) for t in leaves}  # type: ignore[arg-type]

    def lowered(*exact: Tensor) -> dict[Tensor, list[Call]]:
        last = {t: 3 for t in slots if t not in exact}
        to = Lowering(MIDDLE, lambda _: None, slots, last)
        for n in nodes:
            lower(to, n)
        made = [c for c in to.launches if isinstance(c, Call) and c.operator != "Cast"]
        return {n: [c for c in made if c.node is n] for n in nodes}

    divided = lowered()
    (add,) = divided[sum_]
    assert add.arguments[0].shape == y.shape  # type: ignore[union-attr]
    assert add.arguments[2] == Scalar(1 / 64)
    assert divided[normed][-1].arguments[2] == 1e-5 / 64**2
    assert [c.operator for c in divided[other]] == ["Muls", "Silu"]
    assert divided[other][0].arguments[1] == Scalar(64.0)
    read = lowered(sum_)  # by another split
    assert [c.operator for c in read[sum_]] == ["Muls", "Add"]
    assert read[sum_][1].arguments[2] == Scalar(1.0)
    assert read[normed][-1].arguments[2] == 1e-5
    assert [c.operator for c in lowered(made, sum_)[sum_]] == ["Add"]


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
