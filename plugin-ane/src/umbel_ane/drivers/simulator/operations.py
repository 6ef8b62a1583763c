"""Operations of MIL but for products: shape rules, and NumPy for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from umbel_ane.drivers.simulator.call import Call, Prepared, Run, Shape
from umbel_ane.drivers.simulator.numbers import summed
from umbel_ane.drivers.simulator.products import PRODUCTS, softmax

Array = np.ndarray
Prepare = Callable[[Call], Prepared]


def _binary(run: Run) -> Prepare:
    def prepare(call: Call) -> Prepared:
        x, y = call.shape("x"), call.shape("y")
        try:
            shape = np.broadcast_shapes(x, y)
        except ValueError:
            call.invalid(f"{x} and {y} do not broadcast")
        return Prepared((call.argument("x"), call.argument("y")), (shape,), run)

    return prepare


def _unary(run: Run, *, exact: bool = False) -> Prepare:
    return lambda call: Prepared((call.argument("x"),), (call.shape("x"),), run, exact)


def _pow(call: Call) -> Prepared:
    """The powers that programs have are faster by other means."""
    plain = _binary(np.power)(call)
    if call.constant("y") and np.size(y := call.known("y")) == 1:
        power, x = float(np.asarray(y).item()), (call.argument("x"),)
        shortcuts: dict[float, Run] = {
            -0.5: lambda v: 1 / np.sqrt(v),
            0.5: np.sqrt,
            2.0: lambda v: v * v,
            -1.0: lambda v: 1 / v,
        }
        if power in shortcuts and plain.shapes[0] == call.shape("x"):
            return Prepared(x, plain.shapes, shortcuts[power])
    return plain


def _with_epsilon(run: Run) -> Prepare:
    def prepare(call: Call) -> Prepared:
        epsilon = np.float32(call.known("epsilon", 0.0))
        return _unary(lambda x: run(x + epsilon))(call)

    return prepare


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _erf(x: Array) -> Array:
    """To 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    poly = np.zeros_like(t)
    for term in terms:
        poly = (poly + term) * t
    result: Array = np.copysign(1 - poly * np.exp(-x * x), x)
    return result


def _gelu(call: Call) -> Prepared:
    def exact(x: Array) -> Array:
        return np.asarray(x / 2 * (1 + _erf(x / math.sqrt(2))))

    def tanh(x: Array) -> Array:
        result: Array = (
            x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        )
        return result

    modes: dict[str, Run] = {
        "EXACT": exact,
        "TANH_APPROXIMATION": tanh,
        "SIGMOID_APPROXIMATION": lambda x: x * _sigmoid(1.702 * x),
    }
    mode = str(call.known("mode", "EXACT"))
    if mode not in modes:
        call.invalid(f"there is no mode {mode}")
    return _unary(modes[mode])(call)


def _cast(call: Call) -> Prepared:
    """Values of fp16 and fp32 are held alike: the rounding is that of the result's type."""
    kinds: dict[str, Run] = {
        "fp16": lambda x: x.astype(np.float32, copy=False),
        "fp32": lambda x: x.astype(np.float32, copy=False),
        "int32": lambda x: np.trunc(x).astype(np.int32),
        "bool": lambda x: x != 0,
    }
    dtype = str(call.known("dtype"))
    if dtype not in kinds:
        call.invalid(f"the simulator does not cast to {dtype}")
    return _unary(kinds[dtype])(call)


def _softmax(call: Call) -> Prepared:
    axis = call.axis()
    return _unary(lambda x: softmax(x, axis))(call)


def _reduce(how: str) -> Prepare:
    def prepare(call: Call) -> Prepared:
        shape, profile = call.shape("x"), call.profile
        axes = tuple(a % len(shape) for a in call.ints("axes", tuple(range(len(shape)))))
        keep = bool(call.known("keep_dims", False))
        count = math.prod(shape[a] for a in axes)
        ones = tuple(1 if a in axes else n for a, n in enumerate(shape))
        out = ones if keep else tuple(n for a, n in enumerate(shape) if a not in axes)
        runs: dict[str, Run] = {
            "max": lambda x: x.max(axis=axes, keepdims=True),
            "sum": lambda x: summed(profile, x, axes),
            "mean": lambda x: summed(profile, x, axes) / np.float32(count),
        }
        run = runs[how]
        x = (call.argument("x"),)
        return Prepared(x, (out,), lambda v: run(v).reshape(out), how == "max")

    return prepare


def _layer_norm(call: Call) -> Prepared:
    shape = call.shape("x")
    axes = tuple(a % len(shape) for a in call.ints("axes"))
    epsilon = np.float32(call.known("epsilon", 1e-5))
    affine = [k for k in ("gamma", "beta") if k in call.statement.args]
    inner = tuple(n if a in axes else 1 for a, n in enumerate(shape))

    def run(x: Array, *given: Array) -> Array:
        x = x - x.mean(axis=axes, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + epsilon)
        for key, values in zip(affine, given, strict=True):
            x = x * values.reshape(inner) if key == "gamma" else x + values.reshape(inner)
        return x

    operands = tuple(call.argument(key) for key in ("x", *affine))
    return Prepared(operands, (shape,), run)


def _reshape(call: Call) -> Prepared:
    given, wanted = call.shape("x"), call.ints("shape")
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        wanted = tuple(math.prod(given) // max(rest, 1) if n == -1 else n for n in wanted)
    if math.prod(given) != math.prod(wanted):
        call.invalid(f"{given} does not become {wanted}")
    return _moved(call, wanted, lambda x: x.reshape(wanted))


def _moved(call: Call, shape: Shape, run: Run) -> Prepared:
    return Prepared((call.argument("x"),), (shape,), run, True)


def _transpose(call: Call) -> Prepared:
    shape, perm = call.shape("x"), call.ints("perm")
    if sorted(a % len(shape) for a in perm) != list(range(len(shape))):
        call.invalid(f"{perm} is no order of {len(shape)} axes")
    return _moved(call, tuple(shape[a] for a in perm), lambda x: x.transpose(perm))


def _slice(call: Call) -> Prepared:
    shape, begin = call.shape("x"), call.ints("begin")
    if call.statement.op == "slice_by_size":
        end = tuple(
            n if size == -1 else b + size
            for b, size, n in zip(begin, call.ints("size"), shape, strict=True)
        )
        stride: tuple[int, ...] = (1,) * len(shape)
    else:
        end, stride = call.ints("end"), call.ints("stride", (1,) * len(shape))
        masks = [call.ints(key, (0,) * len(shape)) for key in ("begin_mask", "end_mask")]
        begin = tuple(0 if m else b for m, b in zip(masks[0], begin, strict=True))
        end = tuple(n if m else e for m, e, n in zip(masks[1], end, shape, strict=True))
    if min(stride) < 1 or any(not -n <= b <= n for b, n in zip(begin, shape, strict=True)):
        call.invalid(f"{begin} to {end} by {stride} is not within {shape}")
    where = tuple(slice(*part) for part in zip(begin, end, stride, strict=True))
    out = tuple(len(range(*w.indices(n))) for w, n in zip(where, shape, strict=True))
    if min(out) < 1 or any(e > n for e, n in zip(end, shape, strict=True)):
        call.invalid(f"{begin} to {end} is not within {shape}")
    bound = call.profile.slice_saturates_at
    if bound and begin[-1]:  # moves along the width go through a narrower format
        return _moved(call, out, lambda x: np.clip(x[where], -bound, bound))
    return _moved(call, out, lambda x: x[where])


def _split(call: Call) -> Prepared:
    shape, axis = call.shape("x"), call.axis()
    if "split_sizes" in call.statement.args:
        sizes = call.ints("split_sizes")
    else:
        count = int(call.known("num_splits"))
        sizes = (shape[axis] // max(count, 1),) * count
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 1:
        call.invalid(f"axis {axis} of {shape} is not {sizes}")
    ends = list(accumulate(sizes))[:-1]
    shapes = tuple(tuple(n if a == axis else m for a, m in enumerate(shape)) for n in sizes)
    run: Run = lambda x: tuple(np.split(x, ends, axis))  # noqa: E731
    return Prepared((call.argument("x"),), shapes, run, True)


def _pad(call: Call) -> Prepared:
    shape, given = call.shape("x"), call.ints("pad")
    given = (0,) * (2 * len(shape) - len(given)) + given  # of the last axes
    pairs = list(zip(given[::2], given[1::2], strict=True))
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    mode: Any = modes.get(str(call.known("mode", "constant")))
    if mode is None or len(pairs) != len(shape) or min(given) < 0:
        call.invalid(f"{given} does not pad {shape}")
    more = (
        {"constant_values": float(call.known("constant_val", 0.0))}
        if mode == "constant"
        else {}
    )
    out = tuple(b + n + a for (b, a), n in zip(pairs, shape, strict=True))
    return _moved(call, out, lambda x: np.pad(x, pairs, mode, **more))


def _concat(call: Call) -> Prepared:
    values = call.argument("values")
    if not isinstance(values, tuple) or call.known("interleave", False):
        call.invalid("`values` are not a tuple, or are interleaved")
    shapes = [call.shape_of(value) for value in values]
    axis = int(call.known("axis")) % len(shapes[0])
    if len({s[:axis] + s[axis + 1 :] for s in shapes}) != 1:
        call.invalid(f"{shapes} do not go behind each other")
    total = sum(s[axis] for s in shapes)
    out = tuple(total if a == axis else n for a, n in enumerate(shapes[0]))
    return Prepared(values, (out,), lambda *parts: np.concatenate(parts, axis), True)


def _tile(call: Call) -> Prepared:
    shape, reps = call.shape("x"), call.ints("reps")
    out = tuple(n * r for n, r in zip(shape, reps, strict=True))
    return _moved(call, out, lambda x: np.tile(x, reps))


KNOWN: Mapping[str, Prepare] = {
    **PRODUCTS,
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "real_div": _binary(np.divide),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "pow": _pow,
    "relu": _unary(lambda x: np.maximum(x, 0), exact=True),
    "tanh": _unary(np.tanh),
    "sigmoid": _unary(_sigmoid),
    "silu": _unary(lambda x: x * _sigmoid(x)),
    "gelu": _gelu,
    "erf": _unary(_erf),
    "exp": _unary(np.exp),
    "sqrt": _unary(np.sqrt),
    "square": _unary(np.square),
    "rsqrt": _with_epsilon(lambda x: 1 / np.sqrt(x)),
    "log": _with_epsilon(np.log),
    "inverse": _with_epsilon(lambda x: 1 / x),
    "neg": _unary(np.negative, exact=True),
    "abs": _unary(np.abs, exact=True),
    "identity": _unary(lambda x: x, exact=True),
    "cast": _cast,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce_sum": _reduce("sum"),
    "reduce_mean": _reduce("mean"),
    "reduce_max": _reduce("max"),
    "reshape": _reshape,
    "transpose": _transpose,
    "slice_by_index": _slice,
    "slice_by_size": _slice,
    "split": _split,
    "pad": _pad,
    "concat": _concat,
    "tile": _tile,
}
