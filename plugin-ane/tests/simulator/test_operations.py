"""Each operation against NumPy in float64, at the tolerance that aneforge's sweep of MIL
operations met on hardware (relative to the largest value), but no less than one rounding to
float16; moves are exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from ane_rig import HOW, W, blob, ints, program, run, say, tensor, weight
from umbel_ane.drivers import AneError

A = (1, 8, 4, 16)
ROUNDING = 2.0**-11


def const(name: str, kind: str, value: object) -> str:
    return f'{kind} {name} = const()[name = string("{name}"), val = {kind}({value})];\n'


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    result: np.ndarray = e / e.sum(axis, keepdims=True)
    return result


def norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    result: np.ndarray = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return result


E5 = const("e", "fp16", "0x1p-16")
ERF = np.vectorize(math.erf)
sigmoid: Callable[[np.ndarray], np.ndarray] = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
Case = tuple[str, str, tuple[int, ...], Callable[..., np.ndarray], float]
CASES: dict[str, Case] = {
    "add": ("", "add(x = a, y = b)", A, np.add, ROUNDING),
    "sub": ("", "sub(x = a, y = b)", A, np.subtract, ROUNDING),
    "mul": ("", "mul(x = a, y = b)", A, np.multiply, ROUNDING),
    "real_div": ("", "real_div(x = a, y = p)", A, lambda a, b, p: a / p, ROUNDING),
    "maximum": ("", "maximum(x = a, y = b)", A, np.maximum, 0),
    "minimum": ("", "minimum(x = a, y = b)", A, np.minimum, 0),
    "pow": ("", "pow(x = p, y = b)", A, lambda a, b, p: p**b, ROUNDING),
    "rsqrt by pow": (
        const("h", "fp16", -0.5),
        "pow(x = p, y = h)",
        A,
        lambda a, b, p: p**-0.5,
        ROUNDING,
    ),
    "square by pow": (
        const("h", "fp16", 2),
        "pow(x = a, y = h)",
        A,
        lambda a, *_: a**2,
        ROUNDING,
    ),
    "relu": ("", "relu(x = a)", A, lambda a, *_: np.maximum(a, 0), 0),
    "tanh": ("", "tanh(x = a)", A, lambda a, *_: np.tanh(a), 1.26e-3),
    "sigmoid": ("", "sigmoid(x = a)", A, lambda a, *_: sigmoid(a), 3.84e-3),
    "silu": ("", "silu(x = a)", A, lambda a, *_: a * sigmoid(a), 1e-2),
    "gelu": (
        const("m", "string", '"EXACT"'),
        "gelu(mode = m, x = a)",
        A,
        lambda a, *_: a / 2 * (1 + ERF(a / math.sqrt(2))),
        2.4e-3,
    ),
    "erf": ("", "erf(x = a)", A, lambda a, *_: ERF(a), 7e-4),
    "exp": ("", "exp(x = a)", A, lambda a, *_: np.exp(a), ROUNDING),
    "sqrt": ("", "sqrt(x = p)", A, lambda a, b, p: np.sqrt(p), ROUNDING),
    "rsqrt": (E5, "rsqrt(epsilon = e, x = p)", A, lambda a, b, p: p**-0.5, 1.04e-3),
    "log": (E5, "log(epsilon = e, x = p)", A, lambda a, b, p: np.log(p), 8e-4),
    "neg": ("", "neg(x = a)", A, lambda a, *_: -a, 0),
    "abs": ("", "abs(x = a)", A, lambda a, *_: np.abs(a), 0),
    "identity": ("", "identity(x = a)", A, lambda a, *_: a, 0),
    "softmax": (
        const("ax", "int32", -1),
        "softmax(axis = ax, x = a)",
        A,
        lambda a, *_: softmax(a, 3),
        ROUNDING,
    ),
    "softmax of channels": (
        const("ax", "int32", 1),
        "softmax(axis = ax, x = a)",
        A,
        lambda a, *_: softmax(a, 1),
        ROUNDING,
    ),
    "layer_norm": (
        ints("ax", 1) + const("e", "fp16", 1e-5),
        "layer_norm(axes = ax, epsilon = e, x = a)",
        A,
        lambda a, *_: norm(a),
        ROUNDING,
    ),
    "reduce_sum": (
        ints("ax", 1),
        "reduce_sum(axes = ax, keep_dims = yes, x = a)",
        (1, 1, 4, 16),
        lambda a, *_: a.sum(1, keepdims=True),
        8e-4,
    ),
    "reduce_mean": (
        ints("ax", 1, 3),
        "reduce_mean(axes = ax, keep_dims = yes, x = a)",
        (1, 1, 4, 1),
        lambda a, *_: a.mean((1, 3), keepdims=True),
        8e-4,
    ),
    "reduce_max": (
        ints("ax", -1),
        "reduce_max(axes = ax, keep_dims = no, x = a)",
        (1, 8, 4),
        lambda a, *_: a.max(3),
        0,
    ),
    "reshape": (
        ints("sh", 1, 32, 1, -1),
        "reshape(shape = sh, x = a)",
        (1, 32, 1, 16),
        lambda a, *_: a.reshape(1, 32, 1, 16),
        0,
    ),
    "transpose": (
        ints("pm", 0, 3, -2, 1),
        "transpose(perm = pm, x = a)",
        (1, 16, 4, 8),
        lambda a, *_: a.transpose(0, 3, 2, 1),
        0,
    ),
    "slice_by_size": (
        ints("be", 0, 2, 1, 0) + ints("sz", 1, 3, 2, -1),
        "slice_by_size(begin = be, size = sz, x = a)",
        (1, 3, 2, 16),
        lambda a, *_: a[:, 2:5, 1:3],
        0,
    ),
    "slice_by_index": (
        ints("be", 0, 1, 0, 0) + ints("en", 1, 7, 4, 16) + ints("sr", 1, 2, 1, 1),
        "slice_by_index(begin = be, end = en, stride = sr, x = a)",
        (1, 3, 4, 16),
        lambda a, *_: a[:, 1:7:2],
        0,
    ),
    "pad": (
        ints("pa", 0, 0, 1, 2, 0, 0, 3, 0),
        "pad(mode = k, constant_val = zero, pad = pa, x = a)",
        (1, 11, 4, 19),
        lambda a, *_: np.pad(a, [(0, 0), (1, 2), (0, 0), (3, 0)]),
        0,
    ),
    "concat": (
        const("ax", "int32", 1),
        "concat(axis = ax, interleave = no, values = (a, b))",
        (1, 16, 4, 16),
        lambda a, b, p: np.concatenate([a, b], 1),
        0,
    ),
    "tile": (
        ints("r", 1, 2, 1, 1),
        "tile(reps = r, x = a)",
        (1, 16, 4, 16),
        lambda a, *_: np.tile(a, (1, 2, 1, 1)),
        0,
    ),
    "matmul": (
        "",
        "matmul(transpose_x = no, transpose_y = yes, x = a, y = b)",
        (1, 8, 4, 4),
        lambda a, b, p: a @ b.swapaxes(2, 3),
        ROUNDING,
    ),
    "matmul turned": (
        "",
        "matmul(transpose_x = yes, transpose_y = no, x = a, y = b)",
        (1, 8, 16, 16),
        lambda a, b, p: a.swapaxes(2, 3) @ b,
        ROUNDING,
    ),
    "linear": (
        weight((8, 16)) + weight((8,), "bias", offset=64, path="@model_path/b.bin"),
        "linear(bias = bias, weight = W, x = a)",
        (1, 8, 4, 8),
        lambda a, *_: a @ WEIGHT.reshape(8, 16).T + BIAS,
        ROUNDING,
    ),
    "conv": (
        weight((16, 8, 1, 1)),
        f"conv({HOW}, weight = W, x = a)",
        (1, 16, 4, 16),
        lambda a, *_: np.einsum("oi,bihw->bohw", WEIGHT.reshape(16, 8), a),
        ROUNDING,
    ),
    "conv of groups": (
        weight((16, 4, 1, 1)) + const("g2", "int32", 2),
        f"conv({HOW.replace('= gr', '= g2')}, weight = W, x = a)",
        (1, 16, 4, 16),
        lambda a, *_: np.concatenate(
            [
                np.einsum("oi,bihw->bohw", WEIGHT[:64].reshape(16, 4)[8 * g :][:8], part)
                for g, part in enumerate((a[:, :4], a[:, 4:]))
            ],
            1,
        ),
        ROUNDING,
    ),
}
COMMON = const("k", "string", '"constant"') + const("zero", "fp16", 0)
WEIGHT = np.random.default_rng(9).standard_normal(128).astype(np.float16).astype(np.float64)
BIAS = np.arange(8.0)


def inputs() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(4)
    a, b = (draw.standard_normal(A).astype(np.float16) for _ in range(2))
    return {"a": a, "b": b, "p": (np.abs(a) + 0.5).astype(np.float16)}


def computed(body: str, *outputs: str, size: int = 128) -> dict[str, np.ndarray]:
    kinds = {name: tensor(A) for name in "abp"}
    files = {W: blob(WEIGHT[:size]), "@model_path/b.bin": blob(BIAS)}
    text = program(kinds, COMMON + body, *outputs)
    return run(
        "permissive", text, inputs(), {p: f for p, f in files.items() if p in text.decode()}
    )


@pytest.mark.parametrize("name", CASES)
def test_operation(name: str) -> None:
    before, call, shape, wanted, tolerance = CASES[name]
    size = 64 if name == "conv of groups" else 128
    got = computed(before + say(shape, "y", call), "y", size=size)["y"].astype(np.float64)
    given = [v.astype(np.float64) for v in inputs().values()]
    if isinstance(wanted, np.ufunc):
        given = given[:2]
    want = wanted(*given)
    assert got.shape == want.shape == shape
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


def test_split() -> None:
    kinds = [tensor((1, n, 4, 16)) for n in (3, 5)]
    body = ints("sz", 3, 5) + const("ax", "int32", 1)
    body += f"{kinds[0]} l, {kinds[1]} r = split(axis = ax, split_sizes = sz, x = a)"
    got, a = computed(body + '[name = string("l")];', "l", "r"), inputs()["a"]
    assert np.array_equal(got["l"], a[:, :3])
    assert np.array_equal(got["r"], a[:, 3:])
    even = f"{tensor((1, 4, 4, 16))} l, {tensor((1, 4, 4, 16))} r = "
    even = const("n", "int32", 2) + const("ax", "int32", 1) + even
    got = computed(
        even + 'split(axis = ax, num_splits = n, x = a)[name = string("l")];', "l", "r"
    )
    assert np.array_equal(got["r"], a[:, 4:])


def test_cast() -> None:
    """Through int32, which truncates; and fp32 keeps what fp16 would round."""
    body = const("i", "string", '"int32"') + const("h", "string", '"fp16"')
    body += const("f", "string", '"fp32"')
    body += say(A, "n", "cast(dtype = i, x = a)", "int32") + say(
        A, "y", "cast(dtype = h, x = n)"
    )
    assert np.array_equal(computed(body, "y")["y"], np.trunc(inputs()["a"]))
    wide = say(A, "w", "cast(dtype = f, x = a)", "fp32") + const("t", "fp32", 0.1)
    wide = body + wide + say(A, "z", "mul(x = w, y = t)", "fp32")
    a = inputs()["a"].astype(np.float32)
    assert np.array_equal(computed(wide, "z")["z"], a * np.float32(0.1))


def test_values_are_rounded_once_an_operation() -> None:
    """Two operations in float16 differ from the sum in float32; one does not."""
    twice = say(A, "s", "add(x = a, y = b)") + say(A, "y", "add(x = s, y = p)")
    got, given = computed(twice, "y")["y"], inputs()
    s = given["a"] + given["b"]  # float16 in NumPy: rounded
    assert np.array_equal(got, (s + given["p"]).astype(np.float32))
    exact = sum(v.astype(np.float32) for v in given.values())
    assert not np.array_equal(got, np.asarray(exact).astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    "body",
    [
        say((1, 8, 4, 8), "y", "add(x = a, y = b)"),
        ints("sh", 1, 2, 3, 4) + say((1, 2, 3, 4), "y", "reshape(shape = sh, x = a)"),
        ints("pm", 0, 1, 2, 2) + say(A, "y", "transpose(perm = pm, x = a)"),
        ints("be", 0, 7, 0, 0)
        + ints("sz", 1, 2, 4, 16)
        + say((1, 2, 4, 16), "y", "slice_by_size(begin = be, size = sz, x = a)"),
        say((1, 8, 4, 4), "y", "matmul(transpose_x = yes, transpose_y = yes, x = a, y = b)"),
        say(A, "y", "softmax(x = a)"),
        say(A, "y", "softmax(axis = a, x = a)"),
        say(A, "y", "relu(x = nobody)"),
        say(A, "y", "cast(dtype = k, x = a)"),
        weight((16, 4, 1, 1)) + say((1, 16, 4, 16), "y", f"conv({HOW}, weight = W, x = a)"),
    ],
)
def test_what_does_not_fit_is_invalid(body: str) -> None:
    with pytest.raises(AneError, match="InvalidMILProgram"):
        computed(body, "y", size=64)
