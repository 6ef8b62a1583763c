"""Operations that move or rename axes: views share the memory of their input."""

from __future__ import annotations

import math

import numpy as np

from umbel.gguf.types import DType
from umbel.graph import Builder, Operation, Shape, Spec, Tensor, contiguous
from umbel.ops.rules import Array, need


def _tidy(shape: Shape, strides: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Strides as of a contiguous tensor where only axes of one value say otherwise.

    In a decode step most permutations move nothing; this lets them be reshaped without a copy.
    """
    plain = contiguous(shape, dtype)
    same = all(n == 1 or a == b for n, a, b in zip(shape, plain, strides, strict=True))
    return plain if same or 0 in shape else strides


def _infer_reshape(x: Tensor, *, shape: Shape) -> Spec:
    need(x.is_contiguous, "reshape", "a contiguous tensor (use cont)", x)
    known = math.prod(n for n in shape if n != -1)
    holes = shape.count(-1)
    whole = known == x.size if not holes else bool(known) and x.size % known == 0
    fits = whole and holes <= 1 and all(n >= -1 for n in shape)
    need(fits, "reshape", f"{x.size} values", x, attribute=f"shape={list(shape)}")
    full = tuple(x.size // known if n == -1 else n for n in shape)
    return Spec(full, x.dtype, contiguous(full, x.dtype))


def _infer_permute(x: Tensor, *, axes: tuple[int, ...]) -> Spec:
    order = sorted(axes) == list(range(len(x.shape)))
    blocks = not x.dtype.quantised or axes[-1:] == (len(x.shape) - 1,)
    expected = "each axis once; the last stays last where it is quantised"
    need(order and blocks, "permute", expected, x, attribute=f"axes={list(axes)}")
    shape = tuple(x.shape[a] for a in axes)
    return Spec(shape, x.dtype, _tidy(shape, tuple(x.strides[a] for a in axes), x.dtype))


def _infer_transpose(x: Tensor) -> Spec:
    n = len(x.shape)
    need(n >= 2 and not x.dtype.quantised, "transpose", "two axes or more, not quantised", x)
    return _infer_permute(x, axes=(*range(n - 2), n - 1, n - 2))


def _infer_view(x: Tensor, *, axis: int, start: int, stop: int) -> Spec:
    blocks = x.dtype.quantised and axis == len(x.shape) - 1
    fits = 0 <= axis < len(x.shape) and not blocks and 0 <= start <= stop <= x.shape[axis]
    expected = "0 <= start <= stop <= length of an axis that is not quantised"
    need(fits, "view", expected, x, attribute=f"axis={axis}, start={start}, stop={stop}")
    shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
    offset = start * x.strides[axis] if stop > start else 0
    return Spec(shape, x.dtype, _tidy(shape, x.strides, x.dtype), offset)


def _infer_concat(a: Tensor, b: Tensor, *, axis: int) -> Spec:
    rank = len(a.shape) == len(b.shape) and 0 <= axis < len(a.shape)
    plain = a.dtype == b.dtype and not a.dtype.quantised
    same = rank and all(
        n == m for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if i != axis
    )
    expected = "tensors of one dtype that differ in that axis only"
    need(same and plain, "concat", expected, a, b, attribute=f"axis={axis}")
    shape = (*a.shape[:axis], a.shape[axis] + b.shape[axis], *a.shape[axis + 1 :])
    return Spec(shape, a.dtype)


def _infer_repeat(x: Tensor, *, shape: Shape) -> Spec:
    fits = len(shape) == len(x.shape) and not x.dtype.quantised
    fits = fits and all(
        m % n == 0 if n else m == 0 for n, m in zip(x.shape, shape, strict=True)
    )
    need(fits, "repeat", "multiples of each axis", x, attribute=f"shape={list(shape)}")
    return Spec(tuple(shape), x.dtype)


def _reshape(x: Array, *, shape: Shape) -> Array:
    return x.reshape(shape)


def _permute(x: Array, *, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


def _transpose(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _view(x: Array, *, axis: int, start: int, stop: int) -> Array:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _concat(a: Array, b: Array, *, axis: int) -> Array:
    return np.concatenate((a, b), axis)


def _repeat(x: Array, *, shape: Shape) -> Array:
    return np.tile(x, tuple(m // n if n else 1 for n, m in zip(x.shape, shape, strict=True)))


def contiguous_copy(build: Builder, x: Tensor) -> Tensor:
    """`x` so that it can be reshaped: itself where it is contiguous."""
    return x if x.is_contiguous else build.cont(x)


OPS = (
    Operation("reshape", _infer_reshape, _reshape, view=True),
    Operation("permute", _infer_permute, _permute, view=True),
    Operation("transpose", _infer_transpose, _transpose, view=True),
    Operation("view", _infer_view, _view, view=True),
    Operation("concat", _infer_concat, _concat),
    Operation("repeat", _infer_repeat, _repeat),
)
