"""How shape rules are written: a little language, and what it does not cover.

A rule lists the inputs of an operation as `name (sizes) kind`, in their order:

    "w (..., out, in), x (..., n, in) float, bias? (out)"

A size is the same number wherever it stands, `a*b` is a product of sizes named before, `...`
stands for any axes in front. In place of sizes, `same` means those of the first input, and
`broadcasts` that they broadcast to the first input as in NumPy. An input with `?` can be left
out. The kind is `float` (what activations are stored in), `cache` (what rows of state are
stored in) or `i32` (indices); without one the values are real numbers, quantised or not.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME, F32
from umbel.graph import Shape, Spec, Tensor

Array: TypeAlias = np.ndarray | Any  # to mypy, arithmetic on arrays gives Any

_KINDS = {
    "": frozenset(BY_NAME) - {"i8", "i16", "i32", "i64"},
    "float": frozenset({"f32", "f16", "bf16"}),
    "cache": frozenset({"f32", "f16", "q8_0"}),
    "i32": frozenset({"i32"}),
}


def fit(name: str, rule: str, *inputs: Tensor) -> Mapping[str, int]:
    """The sizes that a rule names; refuses inputs of the operation `name` that do not fit."""
    sizes = _sizes(rule, *((t.shape, t.dtype.name) for t in inputs))
    need(bool(sizes), name, rule, *inputs)
    return sizes


def like_first(name: str, rule: str, *inputs: Tensor) -> Spec:
    """The result has the shape of the first input, and its dtype where that is a float type."""
    fit(name, rule, *inputs)
    x = inputs[0]
    return Spec(x.shape, x.dtype if is_a(x, "float") else F32)


@lru_cache(maxsize=1024)  # all layers of a model ask the same
def _sizes(rule: str, *inputs: tuple[Shape, str]) -> Mapping[str, int]:
    """What `fit` gives; nothing where the inputs do not fit."""
    wanted = re.findall(r"\w+(\??) \((.*?)\) ?(\w*)", rule)
    least = sum(not optional for optional, _, _ in wanted)
    sizes = {"1": 1}
    fits = least <= len(inputs) <= len(wanted) and all(
        dtype in _KINDS[kind] and _bind(names.split(", "), shape, inputs[0][0], sizes)
        for (shape, dtype), (_, names, kind) in zip(inputs, wanted, strict=False)
    )
    return sizes if fits else {}


def _bind(names: list[str], shape: Shape, first: Shape, sizes: dict[str, int]) -> bool:
    """Whether a shape has the sizes of these names; what is not known yet becomes known."""
    if names == ["same"]:
        return shape == first
    if names == ["broadcasts"]:
        aligned = zip(reversed(shape), reversed(first), strict=False)
        return len(shape) <= len(first) and all(n in (1, m) for n, m in aligned)
    if names[0] == "...":
        names = names[1:]
        shape = shape[max(0, len(shape) - len(names)) :]
    return len(names) == len(shape) and all(
        n == math.prod(sizes.setdefault(factor, n) for factor in name.split("*"))
        for name, n in zip(names, shape, strict=True)
    )


def is_a(x: Tensor, kind: str) -> bool:
    return x.dtype.name in _KINDS[kind]


def need(fits: bool, name: str, expected: str, *inputs: Tensor, **attributes: object) -> None:
    """Refuses inputs and attributes of the operation `name` unless they fit."""
    if not fits:
        got = [f"{list(t.shape)} {t.dtype}" for t in inputs]
        got += [f"{attribute}={value!r}" for attribute, value in attributes.items()]
        msg = f"{name}: the inputs do not fit"
        raise GraphError(msg, expected=expected, got=", ".join(got))


def divides(n: int, m: int) -> bool:
    """Whether m is a multiple of n; of 0 only 0 is."""
    return m % n == 0 if n else m == 0
