"""Every special form of the host is equal to the reference of its operation."""

from __future__ import annotations

import numpy as np
import pytest
from umbel import host
from umbel.gguf.types import BY_NAME, F32, dequantise
from umbel.graph import MASKED, Operation, Role, Spec


def test_mul_mat(run, close_to, kind, mode):
    """Weights of every type: one row, many, and more than two axes."""
    run.open(dequantise=mode)
    w = run.weight(kind, 40)
    outputs = [run.build.mul_mat(w, run.input(*shape, 256)) for shape in ((1,), (7,), (2, 3))]
    close_to(run.expected(*outputs), run.compute(*outputs))


def test_mul_mat_of_other_inputs(run, close_to, mode):
    """Inputs with gaps, float16 inputs and results, windows on weights, stacked weights."""
    run.open(dequantise=mode)
    b, w = run.build, run.weight("q8_0", 6, 4)
    turned = b.permute(run.input(256, 5), axes=(1, 0))
    half = b.cast(run.input(3, 256), dtype="f16")
    part = b.reshape(b.view(w, axis=0, start=1, stop=2), shape=(6, 256))
    flat = run.weight("q4_1", 6)
    outputs = [
        b.mul_mat(flat, turned),
        b.mul_mat(flat, half),
        b.mul_mat(flat, b.cont(half)),
        b.mul_mat(part, run.input(2, 256)),
        b.mul_mat(w, run.input(4, 3, 256)),
        b.mul_mat(run.input(9, 16), run.input(2, 16)),
        b.cast(b.mul_mat(run.weight("bf16", 4), run.input(2, 256)), dtype="bf16"),
    ]
    outputs = [b.cast(t, dtype="f32") if t.dtype.name != "f32" else t for t in outputs]
    close_to(run.expected(*outputs), run.compute(*outputs))


def test_mul_mat_id(run, close_to, kind, mode):
    """Experts of every type, one or several rows for each token."""
    run.open(dequantise=mode)
    w, b = run.weight(kind, 8, 5), run.build
    ids = run.ids([4, 0], [0, 1], [4, 3])
    outputs = [b.mul_mat_id(w, run.input(3, n, 256), ids) for n in (1, 2)]
    close_to(run.expected(*outputs), run.compute(*outputs))


def test_get_rows(run, close_to, kind, mode):
    """Rows of every type, also twice, and of any number of axes."""
    run.open(dequantise=mode)
    w, b = run.weight(kind, 9), run.build
    outputs = [b.get_rows(w, run.ids(8, 0, 8)), b.get_rows(w, run.ids([1, 2], [2, 0]))]
    expected, actual = run.expected(*outputs), run.compute(*outputs)
    assert [a.tolist() for a in expected] == [a.tolist() for a in actual]


def test_rows_are_not_dequantised_whole(run):
    """A table of embeddings stays as it is."""
    run.open(dequantise="once")
    graph = run.graph(run.build.get_rows(run.weight("q8_0", 9), run.ids(3)))
    host.graph_compute(host.DEVICE, graph)
    assert host.buffer_type(host.DEVICE).used == 0


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_states(run, dtype):
    """Rows are written and read as the state keeps them."""
    state = run.leaf(Role.STATE, run.normal(6, 64), dtype)
    written = run.build.set_rows(state, run.input(2, 64), run.ids(4, 1))
    read = run.build.get_rows(written, run.ids([4, 4], [1, 0]))
    expected, actual = run.expected(written, read), run.compute(written, read)
    assert [a.tolist() for a in expected] == [a.tolist() for a in actual]


class Attention:
    """Caches with some text in them, and a step of attention over it."""

    def __init__(self, run, dtype, lengths, tokens, *, window=0, back=0, how=""):
        heads, kv_heads, size, cells = 4, 2, 32, 400
        s, length = len(lengths), max(lengths) + tokens + 6 + back
        free = list(range(1, cells))
        if how == "scattered":
            run.rng.shuffle(free)
        if how == "swapped":  # one of the step itself among the old
            free[5], free[10] = free[10], free[5]
        table = np.zeros((s, length), np.int32)
        mask = np.full((s, 1, tokens, length), MASKED, np.float32)
        new, own = [], length - tokens - back
        for i, past in enumerate(lengths):
            mine = [free.pop(0) for _ in range(past + tokens)]
            table[i, own - past : own + tokens] = mine
            new += mine[past:]
            for t in range(tokens):
                start = max(own - past, own + t + 1 - window) if window else own - past
                mask[i, 0, t, start : own + t + 1] = 0
        self.mask = mask
        shapes = [(s, tokens, n, size) for n in (heads, kv_heads, kv_heads)]
        self.inputs = [run.input(*shape) for shape in shapes]
        caches = [run.normal(cells, kv_heads * size) for _ in range(2)]
        self.inputs += [run.leaf(Role.STATE, cache, dtype) for cache in caches]
        self.inputs += [run.ids(*new), run.leaf(Role.INPUT, table)]
        self.inputs.append(run.leaf(Role.INPUT, mask))


SHAPES = {
    "decode": {"lengths": [9], "tokens": 1},
    "first token": {"lengths": [0], "tokens": 1},
    "prefill": {"lengths": [3], "tokens": 12},
    "long prefill": {"lengths": [20], "tokens": 150},
    "three sequences": {"lengths": [0, 17, 5], "tokens": 2},
    "window": {"lengths": [30, 2], "tokens": 80, "window": 7},
    "bucket": {"lengths": [6], "tokens": 3, "back": 5},
    "scattered": {"lengths": [30, 11], "tokens": 4, "how": "scattered"},
    "swapped": {"lengths": [9], "tokens": 3, "how": "swapped"},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_kv_attention(run, close_to, dtype, shape):
    """Whatever lies where in the cache, results and caches are those of the reference."""
    case = Attention(run, dtype, **SHAPES[shape])
    output = run.build.kv_attention(*case.inputs, scale=0.2)
    expected, actual = run.expected(output), run.compute(output)
    close_to(expected[:1], actual[:1])
    assert [a.tolist() for a in expected[1:]] == [a.tolist() for a in actual[1:]]


@pytest.mark.parametrize("how", ["soft cap", "alibi", "sinks", "odd mask", "all hidden"])
def test_kinds_of_attention(run, close_to, how):
    """What only some models have; where all is hidden the result is zero."""
    case = Attention(run, "f32", [12, 3], 5)
    attributes, more = {"scale": 0.4}, []
    if how == "soft cap":
        attributes["logit_softcap"] = 3.0
    elif how == "alibi":
        attributes["max_bias"] = 8.0
    elif how == "sinks":
        more = [run.leaf(Role.WEIGHT, run.normal(4))]
    elif how == "odd mask":
        case.mask[case.mask == 0] = run.normal((case.mask == 0).sum())
        case.mask[0, 0, 2, 8:12] = MASKED
    else:
        case.mask[0] = MASKED
        case.mask[1, 0, 3] = MASKED
    output = run.build.kv_attention(*case.inputs, *more, **attributes)
    expected, actual = run.expected(output), run.compute(output)
    close_to(expected, actual)
    if how == "all hidden":
        assert 0 == np.abs(actual[0][:5]).max() == np.abs(actual[0][8]).max()


def test_scratch_is_never_read(run, close_to):
    """Cell 0 may hold anything: whatever is hidden is not looked at."""
    for shape in ("decode", "three sequences", "bucket"):
        case = Attention(run, "f32", **SHAPES[shape])
        output = run.build.kv_attention(*case.inputs, scale=0.2)
        expected = run.expected(output)[0]
        for t in case.inputs[3:5]:
            run.feeds[t][0] = np.nan
        assert np.abs(expected - run.compute(output)[0]).max() < 1e-5
        run.feeds.clear()


def test_results_in_every_float(run):
    """Results are stored in the dtype of the node."""
    b, x = run.build, run.input(4, 8)
    outputs = [b.cast(x, dtype=name) for name in ("f16", "bf16")]
    halves, brain = run.compute(*outputs)
    assert run.feeds[x].astype(np.float16).tolist() == halves.tolist()
    expected = run.expected(outputs[1])[0]
    assert expected.tolist() == dequantise(brain, BY_NAME["bf16"]).tolist()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_turned_view_is_read_by_its_strides(run, dtype):
    """Of a dtype that NumPy does not know too, where the last axis is not contiguous."""
    x = run.leaf(Role.INPUT, run.normal(3, 5), dtype)
    turned = run.build.permute(x, axes=(1, 0))
    (actual,) = run.compute(run.build.cast(turned, dtype="f32"))
    assert dequantise(run.feeds[x], BY_NAME[dtype]).T.tolist() == actual.tolist()


def test_an_operation_that_nobody_knows(run):
    """A new operation runs by its reference, with what it changes as it is stored."""

    def change(state, x):
        assert state.dtype == np.float16
        state += x.astype(np.float16)
        return x * 2

    op = Operation("new", lambda state, x: Spec(x.shape, F32), change, mutates=(0,))
    state = run.leaf(Role.STATE, np.zeros((2, 3), np.float32), "f16")
    x = run.input(2, 3)
    doubled, kept = run.compute(run.build.apply(op, state, x))
    assert (2 * run.feeds[x]).tolist() == doubled.tolist()
    half = run.feeds[x].astype(np.float16)
    assert (half + half).tolist() == kept.tolist()
