"""Views: values through NumPy, and the strides and offsets that a backend would use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.errors import GraphError
from umbel.gguf.types import F32, Q8_0
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel_kit.reference import evaluate


def through_strides(node, memory):
    """What a backend reads: base, offset and strides."""
    return np.ndarray(node.shape, node.dtype.numpy, memory.tobytes(), node.offset, node.strides)


def made(shape):
    build = Builder(OPS)
    return build, build.leaf(Role.INPUT, "x", shape, F32)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_chains_of_views(data):
    """Strides and offset of any chain of views address what NumPy's views hold."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    build, node = made(shape)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    feeds = {node: values}
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["permute", "view", "reshape"]))
        if kind == "permute":
            axes = data.draw(st.permutations(range(len(node.shape))))
            node = build.permute(node, axes=tuple(axes))
        elif kind == "view":
            axis = data.draw(st.integers(0, len(node.shape) - 1))
            start = data.draw(st.integers(0, node.shape[axis]))
            stop = data.draw(st.integers(start, node.shape[axis]))
            node = build.view(node, axis=axis, start=start, stop=stop)
        elif node.is_contiguous and node.size:
            node = build.reshape(node, shape=(node.size // node.shape[-1], node.shape[-1]))
    (expected,) = evaluate(build.graph([node]), feeds)
    assert expected.tolist() == through_strides(node, values).tolist()
    if node.op is not None:
        assert node.storage.name == "x"
        if node.size:
            assert node.is_contiguous == expected.flags.c_contiguous


def test_permutation_that_moves_nothing_is_contiguous():
    """In a decode step heads and the single token swap places without a copy."""
    build, x = made((1, 8, 1, 4))
    turned = build.permute(x, axes=(0, 2, 1, 3))
    assert turned.is_contiguous
    assert build.reshape(turned, shape=(1, 32)).shape == (1, 32)


def test_reshape_refused():
    """A reshape needs contiguous values, as many as before, none negative."""
    build, x = made((4, 6))
    for shape in ((5, 5), (-1, -1), (-1, 5), (-2, -12)):
        with pytest.raises(GraphError, match="reshape") as caught:
            build.reshape(x, shape=shape)
        assert str(list(shape)) in caught.value.got
    with pytest.raises(GraphError, match="reshape"):
        build.reshape(build.permute(x, axes=(1, 0)), shape=(24,))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("permute", {"axes": (0, 0)}),
        ("permute", {"axes": (0,)}),
        ("view", {"axis": 2, "start": 0, "stop": 1}),
        ("view", {"axis": -1, "start": 0, "stop": 1}),
        ("view", {"axis": 0, "start": 2, "stop": 1}),
        ("view", {"axis": 0, "start": 0, "stop": 5}),
    ],
)
def test_refused(op, attributes):
    """Axes and bounds that do not exist are refused by name."""
    build, x = made((4, 6))
    with pytest.raises(GraphError, match=op):
        build.apply(OPS[op], x, **attributes)


def test_quantised_views():
    """A quantised tensor is cut along leading axes only: a block cannot be divided."""
    build = Builder(OPS)
    w = build.leaf(Role.WEIGHT, "w", (4, 3, 64), Q8_0)
    part = build.view(w, axis=0, start=1, stop=3)
    assert (part.shape, part.offset) == ((2, 3, 64), 3 * 68)
    assert build.permute(w, axes=(1, 0, 2)).strides == (68, 204, 34)
    assert build.reshape(w, shape=(12, 64)).strides == (68, 34)
    for node in (
        lambda: build.view(w, axis=2, start=0, stop=32),
        lambda: build.permute(w, axes=(0, 2, 1)),
        lambda: build.cont(w),
        lambda: build.concat(w, w, axis=0),
    ):
        with pytest.raises(GraphError):
            node()


def test_views_of_views_share_the_first_memory():
    """The base is what owns the memory, the offset counts from its start."""
    build, x = made((4, 6))
    part = build.view(build.view(x, axis=0, start=1, stop=4), axis=1, start=2, stop=5)
    assert (part.base, part.offset, part.strides) == (x, 24 + 8, (24, 4))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat(ops, normal, axis):
    """Concatenation along each axis, also with nothing."""
    a = normal(2, 3, 4)
    b = normal(*(n + (i == axis) for i, n in enumerate(a.shape)))
    none = a.take([], axis)
    actual = ops.reference("concat", a, b, axis=axis)
    assert [a.tolist(), b.tolist()] == [
        t.tolist() for t in np.split(actual, [a.shape[axis]], axis)
    ]
    assert ops.reference("concat", none, a, axis=axis).tolist() == a.tolist()
    with pytest.raises(GraphError, match="concat"):
        ops.reference("concat", a, b, axis=(axis + 1) % 3)


def test_concat_refuses_two_dtypes(ops, normal):
    """Both parts have one dtype."""
    with pytest.raises(GraphError, match="concat"):
        ops.reference("concat", normal(2), np.zeros(2, np.int32), axis=0)


@pytest.mark.parametrize("start", [0, 2, 5])
def test_a_view_of_nothing_lies_in_its_memory(start):
    """There is none of it, so it begins where that begins."""
    build, x = made((0, 5))
    view = build.view(x, axis=1, start=start, stop=5)
    assert (view.shape, view.offset, x.nbytes) == ((0, 5 - start), 0, 0)


def test_rows_of_blocks_are_reshaped():
    """A state in q8_0, whose arrays are bytes."""
    build, rows = Builder(OPS), np.arange(6 * 68, dtype=np.uint8).reshape(6, 68)
    state = build.leaf(Role.STATE, "s", (6, 64), Q8_0)
    for shape in ((2, 3, 64), (12, 32), (3, 2, 2, 32)):
        (got,) = evaluate(
            build.graph([node := build.reshape(state, shape=shape)]), {state: rows}
        )
        assert (node.shape, got.shape[:-1]) == (shape, shape[:-1])
        assert got.tobytes() == rows.tobytes()
    empty = build.leaf(Role.STATE, "e", (0, 64), Q8_0)
    (got,) = evaluate(build.graph([build.reshape(empty, shape=(0, 2, 32))]), {empty: rows[:0]})
    assert got.size == 0
