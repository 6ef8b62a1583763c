"""What the shape rules of all families share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from umbel.errors import GraphError
from umbel.gguf.types import F32, I32, DType
from umbel.graph import Shape, Tensor

Array: TypeAlias = np.ndarray | Any  # to mypy, arithmetic on arrays gives Any

_FLOATS = ("f32", "f16", "bf16")
_INTEGERS = ("i8", "i16", "i32", "i64")


def need(
    fits: bool, name: str, expected: str, *inputs: Tensor, attribute: object = None
) -> None:
    """Refuses the inputs of the operation `name` unless they fit."""
    if not fits:
        got = ", ".join(f"{list(t.shape)} {t.dtype}" for t in inputs)
        if attribute is not None:
            got += f" with {attribute}"
        msg = f"{name}: the inputs do not fit"
        raise GraphError(msg, expected=expected, got=got)


def need_float(name: str, x: Tensor) -> None:
    need(x.dtype.name in _FLOATS, name, "an f32, f16 or bf16 tensor", x)


def is_number(x: Tensor) -> bool:
    """Whether the values are real numbers, quantised or not, rather than indices."""
    return x.dtype.name not in _INTEGERS


def is_index(x: Tensor) -> bool:
    return x.dtype == I32


def result_dtype(x: Tensor) -> DType:
    """Results stay in the dtype of the activations; whatever else is read becomes f32."""
    return x.dtype if x.dtype.name in _FLOATS else F32


def broadcasts(shape: Shape, target: Shape) -> bool:
    """Whether `shape` broadcasts to exactly `target`, as in NumPy."""
    if len(shape) > len(target):
        return False
    last = target[len(target) - len(shape) :]
    return all(n in (1, m) for n, m in zip(shape, last, strict=True))
