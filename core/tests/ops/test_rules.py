"""The language of shape rules."""

import pytest
from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME
from umbel.graph import Tensor
from umbel.ops.rules import fit

RULE = "w (..., out, in), x (n, in) float, y? (n, in*out), ids? (n) i32"


def tensor(*shape, dtype="f32"):
    return Tensor(shape, BY_NAME[dtype])


W, X, Y, IDS = tensor(9, 4, 32), tensor(3, 32), tensor(3, 128), tensor(3, dtype="i32")


def test_sizes():
    """Names stand for sizes; what is optional may be left out, and so may leading axes."""
    sizes = {"out": 4, "in": 32, "n": 3}
    for given in ((W, X), (tensor(4, 32, dtype="q8_0"), X, Y), (W, X, Y, IDS)):
        assert sizes == {k: v for k, v in fit("op", RULE, *given).items() if k != "1"}


@pytest.mark.parametrize(
    "given",
    [
        (W,),
        (W, X, Y, IDS, IDS),
        (tensor(32), X),
        (W, tensor(1, 3, 32)),
        (W, tensor(3, 31)),
        (W, tensor(3, 32, dtype="q8_0")),
        (W, tensor(3, 32, dtype="i32")),
        (tensor(4, 32, dtype="i8"), X),
        (W, X, tensor(3, 127)),
        (W, X, tensor(4, 128)),
        (W, X, Y, tensor(3)),
        (W, X, Y, tensor(3, dtype="i64")),
    ],
)
def test_refused(given):
    """Counts, axes, sizes and kinds that differ; the rule itself is what was expected."""
    with pytest.raises(GraphError, match="op: the inputs do not fit") as caught:
        fit("op", RULE, *given)
    assert caught.value.expected == RULE
    assert ", ".join(f"{list(t.shape)} {t.dtype}" for t in given) == caught.value.got


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 1), (4, 1, 1), (4, 3, 5)])
def test_broadcasts(shape):
    """To the first input as in NumPy, and not the first to it."""
    rule = "a (...), b (broadcasts)"
    assert fit("op", rule, tensor(4, 3, 5), tensor(*shape)) == {"1": 1}
    with pytest.raises(GraphError):
        fit("op", rule, tensor(2), tensor(*shape, 3))


def test_same():
    """As many axes of the same sizes as the first input, whatever these are."""
    rule = "gate (...), up (same)"
    assert fit("op", rule, tensor(4, 3), tensor(4, 3)) == {"1": 1}
    for shape in ((3,), (1, 4, 3), (4, 1), (3, 4)):
        with pytest.raises(GraphError):
            fit("op", rule, tensor(4, 3), tensor(*shape))


@pytest.mark.parametrize("n", [0, 2])
def test_a_number_is_itself(n):
    """`1` is a size of one, and only of one."""
    assert fit("op", "x (1, n)", tensor(1, 7))["n"] == 7
    with pytest.raises(GraphError):
        fit("op", "x (1, n)", tensor(n, 7))
