"""Operations that move or rename axes: views share the memory of their input."""

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
    fits = x.is_contiguous and math.prod(shape) == x.size and min(shape, default=0) >= 0
    need(fits, "reshape", "as many values, contiguous (use cont)", x, shape=list(shape))
    return Spec(shape, x.dtype, contiguous(shape, x.dtype))


def _infer_permute(x: Tensor, *, axes: tuple[int, ...]) -> Spec:
    order = sorted(axes) == list(range(len(x.shape)))
    blocks = not x.dtype.quantised or axes[-1:] == (len(x.shape) - 1,)
    need(order and blocks, "permute", "each axis once, quantised rows whole", x, axes=axes)
    shape = tuple(x.shape[a] for a in axes)
    return Spec(shape, x.dtype, _tidy(shape, tuple(x.strides[a] for a in axes), x.dtype))


def _infer_view(x: Tensor, *, axis: int, start: int, stop: int) -> Spec:
    blocks = x.dtype.quantised and axis == len(x.shape) - 1
    fits = 0 <= axis < len(x.shape) and not blocks and 0 <= start <= stop <= x.shape[axis]
    expected = "0 <= start <= stop <= length of an axis that is not quantised"
    need(fits, "view", expected, x, axis=axis, start=start, stop=stop)
    shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
    offset = start * x.strides[axis] if math.prod(shape) else 0
    return Spec(shape, x.dtype, _tidy(shape, x.strides, x.dtype), offset)


def _infer_concat(a: Tensor, b: Tensor, *, axis: int) -> Spec:
    plain = a.dtype == b.dtype and not a.dtype.quantised
    before, after = a.shape[:axis], a.shape[axis + 1 :]
    fits = plain and 0 <= axis < len(a.shape) == len(b.shape)
    fits = fits and b.shape == (*before, b.shape[axis], *after)
    expected = "tensors of one dtype that differ in that axis only"
    need(fits, "concat", expected, a, b, axis=axis)
    return Spec((*before, a.shape[axis] + b.shape[axis], *after), a.dtype)


def _reshape(x: Array, *, shape: Shape) -> Array:
    rows_of_blocks = x.dtype == np.uint8 and x.size > 0  # whose bytes are not the values
    return x.reshape(*shape[:-1], -1) if rows_of_blocks else x.reshape(shape)


def _view(x: Array, *, axis: int, start: int, stop: int) -> Array:
    """What lies from start to stop (not included) along one axis."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


def contiguous_copy(build: Builder, x: Tensor) -> Tensor:
    """`x` so that it can be reshaped: itself where it is contiguous."""
    return x if x.is_contiguous else build.cont(x)


OPS = (
    Operation("reshape", _infer_reshape, _reshape, view=True),
    Operation("permute", _infer_permute, np.transpose, view=True),
    Operation("view", _infer_view, _view, view=True),
    Operation("concat", _infer_concat, np.append),
)
