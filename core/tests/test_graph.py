"""Tensors, the builder and graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.errors import GraphError
from umbel.gguf.types import F16, F32, I32, Q8_0
from umbel.graph import MASKED, Builder, Role, Tensor, contiguous
from umbel.ops import OPS


@pytest.fixture
def build():
    return Builder(OPS)


def leaf(build, name="x", shape=(2, 3), dtype=F32, role=Role.INPUT):
    return build.leaf(role, name, shape, dtype)


@given(st.lists(st.integers(1, 5), max_size=4))
@settings(max_examples=50, deadline=None)
def test_contiguous_strides(shape):
    """Strides are those of NumPy."""
    expected = np.zeros(shape, np.float32)
    assert tuple(np.ndarray(shape, "f4").strides) == contiguous(tuple(shape), F32)
    assert (expected.nbytes, expected.size) == (
        Tensor(tuple(shape), F32).nbytes,
        Tensor(tuple(shape), F32).size,
    )


def test_quantised_strides():
    """The last stride is that of a block; rows hold whole blocks."""
    w = Tensor((2, 3, 64), Q8_0)
    assert (w.strides, w.nbytes, w.is_contiguous) == ((204, 68, 34), 408, True)
    with pytest.raises(GraphError, match="q8_0"):
        Tensor((3, 33), Q8_0)


def test_zero_sized():
    """A tensor of nothing has no bytes."""
    assert (Tensor((0, 4), F32).nbytes, Tensor((4, 0), F32).size) == (0, 0)


def test_too_many_axes():
    """Four axes at most."""
    with pytest.raises(GraphError, match="x: too many axes"):
        Tensor((1, 1, 1, 1, 1), F32, name="x")


def test_mask_fits_f16():
    """What hides is finite in float16, and twice hidden is too."""
    assert np.isfinite(np.float16(2 * MASKED))


def test_equal_nodes_are_merged(build):
    """Equal operations on equal inputs are one node; attributes and order count."""
    x, y = leaf(build), leaf(build, "y")
    assert build.add(x, y) is build.add(x, y)
    assert build.add(x, y) is not build.add(y, x)
    assert build.scale(x, s=1.0) is not build.scale(x, s=2.0)
    assert build.scale(x, s=1.0) is not build.apply(OPS["scale"], x, stored_as=F16, s=1.0)
    assert len(build.nodes) == 5


def test_writes_are_not_merged(build):
    """Writing twice is not writing once; what was read before stays read before."""
    state = leaf(build, "state", role=Role.STATE)
    rows, ids = leaf(build, "rows", (1, 3)), leaf(build, "ids", (1,), I32)
    before = build.get_rows(state, ids)
    first = build.set_rows(state, rows, ids)
    second = build.set_rows(state, rows, ids)
    after = build.get_rows(second, ids)
    assert (first is second, before is after) == (False, False)
    assert (first.base, second.storage, first.strides) == (state, state, state.strides)
    names = [n.op.name for n in build.graph([before, first, after]).nodes]
    assert names == ["get_rows", "set_rows", "set_rows", "get_rows"]


def test_stored_as(build):
    """A result can be kept in another float dtype."""
    node = build.apply(OPS["neg"], leaf(build), stored_as=F16)
    assert (node.dtype, node.strides) == (F16, (6, 2))


def test_leaves(build):
    """The same name is the same leaf; another shape or dtype under it is refused."""
    assert leaf(build) is leaf(build)
    assert leaf(build) is not leaf(build, role=Role.WEIGHT)
    for shape, dtype in (((3, 2), F32), ((2, 3), F16)):
        with pytest.raises(GraphError, match="declared twice"):
            leaf(build, shape=shape, dtype=dtype)


def test_constants(build):
    """Constants are float32 or int32, merged by value and not by object."""
    one = build.const(np.ones(3))
    assert (one.dtype, one.role, one.data.dtype) == (F32, Role.CONST, np.float32)
    assert build.const(np.ones(3)) is one
    assert build.const(np.ones((1, 3))) is not one
    assert build.const(np.ones(3, np.int64)).dtype is I32


def test_trailing_inputs_can_be_left_out(build):
    """None at the end is as if not given; None before the end is refused."""
    x, b = leaf(build), leaf(build, "b", (3,))
    assert build.norm(x, None, None, eps=1e-5) is build.norm(x, eps=1e-5)
    with pytest.raises(GraphError, match="trailing"):
        build.norm(x, None, b, eps=1e-5)


def test_unknown_operation(build):
    """A misspelt operation is an AttributeError that names it."""
    with pytest.raises(AttributeError, match="'softmax'"):
        build.softmax(leaf(build))


@pytest.mark.parametrize("attributes", [{}, {"s": 2.0, "slope": 1.0}], ids=["none", "odd"])
def test_wrong_attributes(build, attributes):
    """One that is missing, or unknown: the error names the operation and the attribute."""
    with pytest.raises(GraphError, match=r"^scale: (.|\n)*'(s|slope)'"):
        build.scale(leaf(build), **attributes)


def test_graph_holds_what_is_needed(build):
    """Nodes that no output needs are left out; the order is that of building."""
    x, y = leaf(build), leaf(build, "y")
    a = build.neg(x)
    unused = build.exp(y)
    b = build.add(a, x, name="sum")
    graph = build.graph([b, a])
    assert (graph.nodes, graph.outputs) == ((a, b), (b, a))
    assert unused not in graph.nodes
    assert (graph.leaves(Role.INPUT), graph.leaves(Role.WEIGHT)) == ([x], [])


def test_labels(build):
    """A tensor is shown by its name, else by its operation, with shape and dtype."""
    x = leaf(build)
    assert (repr(x), repr(build.neg(x))) == ("<x [2, 3] f32>", "<neg [2, 3] f32>")
    assert build.exp(x, name="y").label == "y"
