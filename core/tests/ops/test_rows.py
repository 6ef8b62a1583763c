"""Rows gathered, scattered and multiplied, against loops."""

import numpy as np
import pytest
from umbel.errors import GraphError
from umbel.gguf.types import BF16, BY_NAME, F16, F32, Q8_0, dequantise, quantise
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel_kit.reference import evaluate

I32 = np.int32


def test_get_rows(ops, normal):
    """Ids of any shape take rows of a table."""
    a, ids = normal(5, 3), np.array([[4, 0], [0, 2]], I32)
    actual = ops.reference("get_rows", a, ids)
    assert [[a[i].tolist() for i in row] for row in ids] == actual.tolist()
    assert ops.reference("get_rows", a, ids[:0]).shape == (0, 2, 3)


def test_get_rows_batched(ops, normal):
    """With leading axes each batch has its own ids."""
    a, ids = normal(2, 5, 3), np.array([[4, 0, 1], [0, 2, 2]], I32)
    actual = ops.reference("get_rows", a, ids)
    assert [[a[b, i].tolist() for i in row] for b, row in enumerate(ids)] == actual.tolist()
    with pytest.raises(GraphError, match="get_rows"):
        ops.reference("get_rows", a, ids[:1])


@pytest.mark.parametrize("dtype", [F32, F16, BF16, Q8_0], ids=str)
def test_get_rows_is_f32(dtype, normal):
    """Rows of any dtype come out as float32."""
    build, values = Builder(OPS), normal(4, 32)
    if dtype is BF16:  # the upper halves of float32
        raw = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        expected = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    else:
        raw = quantise(values, dtype)
        expected = dequantise(raw, dtype)
    a = build.leaf(Role.WEIGHT, "a", (4, 32), dtype)
    ids = build.const(np.array([2, 0]))
    node = build.get_rows(a, ids)
    (actual,) = evaluate(build.graph([node]), {a: raw})
    assert (node.dtype, actual.dtype) == (F32, np.float32)
    assert expected[[2, 0]].tolist() == actual.tolist()


@pytest.mark.parametrize("dtype", [F32, F16, Q8_0], ids=str)
def test_set_rows(dtype, normal):
    """Rows are written in place, as the state is stored; the result is the state itself."""
    build, rows = Builder(OPS), normal(2, 32)
    state = build.leaf(Role.STATE, "state", (4, 32), dtype)
    memory = quantise(normal(4, 32), dtype)
    before = memory.copy()
    src = build.leaf(Role.INPUT, "src", rows.shape, F32)
    written = build.set_rows(state, src, build.const(np.array([3, 1])))
    read = build.get_rows(written, build.const(np.arange(4)))
    (actual,) = evaluate(build.graph([read]), {state: memory, src: rows})
    assert (written.storage, written.offset) == (state, 0)
    assert quantise(rows[::-1].copy(), dtype).tolist() == memory[[1, 3]].tolist()
    assert before[[0, 2]].tolist() == memory[[0, 2]].tolist()
    assert dequantise(memory, dtype).tolist() == actual.tolist()


def test_set_rows_refused(ops, normal):
    """Wrong widths, counts and dtypes of a write are refused."""
    ids = np.array([0, 1], I32)
    for args in (
        (normal(4, 3), normal(2, 4), ids),
        (normal(4, 3), normal(3, 3), ids),
        (normal(4, 3), normal(2, 3), normal(2)),
        (normal(2, 4, 3), normal(2, 3), ids),
    ):
        with pytest.raises(GraphError, match="set_rows"):
            ops.reference("set_rows", *args)


def mul_mat(w, x):
    """Index by index, as ggml broadcasts: batch i of x meets batch i // r of w."""
    out = np.zeros((*x.shape[:-1], w.shape[-2]))
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape).astype(np.float64)
    for at in np.ndindex(x.shape[:-2]):
        ratio = (n // m for n, m in zip(x.shape, w.shape, strict=False))
        mine = w[tuple(i // r for i, r in zip(at, ratio, strict=False))]
        for i in range(x.shape[-2]):
            for o in range(w.shape[-2]):
                out[(*at, i, o)] = np.dot(mine[o], x[(*at, i)].astype(np.float64))
    return out


@pytest.mark.parametrize(
    ("w", "x"),
    [
        ((5, 4), (1, 4)),
        ((5, 4), (3, 4)),
        ((5, 4), (2, 3, 4)),
        ((5, 4), (2, 2, 3, 4)),
        ((2, 5, 4), (2, 3, 4)),
        ((2, 5, 4), (6, 3, 4)),
        ((1, 5, 4), (6, 3, 4)),
        ((2, 5, 4), (3, 4, 1, 4)),
        ((2, 3, 5, 4), (4, 3, 2, 4)),
        ((2, 3, 5, 4), (4, 6, 2, 4)),
        ((5, 4), (0, 4)),
        ((0, 4), (3, 4)),
        ((5, 0), (3, 0)),
        ((0, 5, 4), (0, 3, 4)),
    ],
)
def test_mul_mat(ops, normal, w, x):
    """Products with every way of sharing w among batches, and of nothing."""
    w, x = normal(*w), normal(*x)
    np.testing.assert_allclose(ops.reference("mul_mat", w, x), mul_mat(w, x), atol=1e-5)


def test_mul_mat_of_views(normal):
    """Operands may be transposed, permuted or cut."""
    build = Builder(OPS)
    w = build.leaf(Role.INPUT, "w", (2, 4, 7), F32)
    x = build.leaf(Role.INPUT, "x", (3, 4, 4), F32)
    cut = build.view(build.permute(w, axes=(0, 2, 1)), axis=1, start=1, stop=6)  # (2, 5, 4)
    node = build.mul_mat(cut, build.permute(x, axes=(1, 0, 2)))  # (4, 3, 5)
    feeds = {w: normal(2, 4, 7), x: normal(3, 4, 4)}
    (actual,) = evaluate(build.graph([node]), feeds)
    expected = mul_mat(feeds[w].swapaxes(1, 2)[:, 1:6], feeds[x].swapaxes(0, 1))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("w", "x"),
    [((5, 4), (3, 5)), ((5,), (3, 5)), ((2, 5, 4), (3, 3, 4)), ((2, 5, 4), (3, 4))],
)
def test_mul_mat_refused(ops, normal, w, x):
    """Unequal inner sizes and batches that are no multiples are refused with both shapes."""
    with pytest.raises(GraphError, match="mul_mat") as caught:
        ops.reference("mul_mat", normal(*w), normal(*x))
    assert (str(list(w)) in caught.value.got, str(list(x)) in caught.value.got) == (True, True)


def test_mul_mat_of_quantised(normal):
    """A quantised weight counts as its float32 values, and is given as its bytes."""
    build, values, x = Builder(OPS), normal(6, 64), normal(3, 64)
    w = build.leaf(Role.WEIGHT, "w", values.shape, BY_NAME["q4_0"])
    leaf = build.leaf(Role.INPUT, "x", x.shape, F32)
    raw = quantise(values, BY_NAME["q4_0"])
    (actual,) = evaluate(build.graph([build.mul_mat(w, leaf)]), {w: raw, leaf: x})
    expected = mul_mat(dequantise(raw, BY_NAME["q4_0"]), x)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    half = build.reshape(build.view(w, axis=0, start=2, stop=4), shape=(2, 64))
    (actual,) = evaluate(build.graph([build.mul_mat(half, leaf)]), {w: raw, leaf: x})
    np.testing.assert_allclose(actual, expected[:, 2:4], atol=1e-4)


def experts(w, x, ids):
    x = np.broadcast_to(x, (*ids.shape, x.shape[2])).astype(np.float64)
    return np.array(
        [[w[e] @ x[i, j] for j, e in enumerate(row)] for i, row in enumerate(ids)]
    ).reshape(*ids.shape, w.shape[1])


@pytest.mark.parametrize(("n", "used", "own"), [(1, 2, 1), (5, 3, 3), (5, 3, 1), (4, 1, 1)])
def test_mul_mat_id(ops, rng, normal, n, used, own):
    """Each token meets the experts that were chosen for it; one may serve many, or none."""
    w, x = normal(4, 6, 8), normal(n, own, 8)
    ids = rng.integers(0, 3, (n, used)).astype(I32)
    expected = experts(w, x, ids)
    assert ops.nmse(expected, ops.reference("mul_mat_id", w, x, ids)) < 1e-12
    assert ops.nmse(expected, ops.decomposed("mul_mat_id", w, x, ids)) < 1e-12


def test_mul_mat_id_ignores_other_experts(ops):
    """In float16 an expert that overflows does not spoil the one that was chosen."""
    w = np.stack([np.eye(4), np.full((4, 4), 3e4)]).astype(np.float32)
    x, ids = np.full((1, 1, 4), 100, np.float32), np.zeros((1, 1), I32)
    actual = ops.decomposed("mul_mat_id", w, x, ids, compute="f16")
    assert x.tolist() == actual.tolist()


def test_mul_mat_id_refused(ops, normal):
    """x has one row per token or one per chosen expert."""
    ids = np.zeros((2, 3), I32)
    for x in (normal(2, 2, 8), normal(3, 1, 8), normal(2, 1, 7)):
        with pytest.raises(GraphError, match="mul_mat_id"):
            ops.reference("mul_mat_id", normal(4, 6, 8), x, ids)


def test_top_k(ops):
    """The largest first; of equals the lower index first; never -inf before a number."""
    x = np.array([[1, 3, 3, 2], [0, 0, 0, 0], [-np.inf, -5, 7, -np.inf]], np.float32)
    actual = ops.reference("top_k", x, k=3)
    assert actual.tolist() == [[1, 2, 3], [0, 1, 2], [2, 1, 0]]
    for k in (0, 5):
        with pytest.raises(GraphError, match="top_k"):
            ops.reference("top_k", x, k=k)


def test_top_k_of_many_equals(ops, rng):
    """The order among equals is that of their indices, however long the row."""
    x = rng.integers(0, 4, (3, 200)).astype(np.float32)
    expected = [sorted(range(200), key=lambda i, row=row: (-row[i], i))[:50] for row in x]
    assert ops.reference("top_k", x, k=50).tolist() == expected


def test_sum_rows(ops, normal):
    """Sums of the last axis keep it."""
    x = normal(2, 3, 700)
    expected = x.astype(np.float64).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(ops.reference("sum_rows", x), expected, atol=1e-4)
    assert ops.reference("sum_rows", np.zeros((2, 0), np.float32)).tolist() == [[0], [0]]
