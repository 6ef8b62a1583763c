"""Writes IR nodes: infers shapes, refuses what no MIL operation takes, merges equal ones.

Shapes are four axes, dtypes fp16 unless said otherwise. What does not fit is a `ValueError`: a
mistake of whoever lowers, never of a model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from umbel_ane.compiler.ir import FP16, Node, Shape4, Weight


class IRBuilder:
    """`b.add(x, y)`, `b.conv1x1(x, w)` ...: equal subexpressions become one node."""

    def __init__(self, name: str = "") -> None:
        self.name = name  # given to the nodes that are made: the core's node at hand
        self._known: dict[Hashable, Node] = {}

    # leaves

    def input(self, name: str, shape: Shape4, dtype: str = FP16) -> Node:
        return self._keep(("input", name), Node("input", (), shape, dtype, name=name))

    def weight(self, weight: Weight, shape: Shape4, dtype: str = FP16) -> Node:
        node = Node("const", (), shape, dtype, name=str(weight.key), weight=weight)
        return self._keep(("const", weight.key, shape, dtype), node)

    def const(self, values: np.ndarray | float, dtype: str = FP16) -> Node:
        """Values that the program holds; a number is [1, 1, 1, 1]."""
        kind = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32}[dtype]
        data = np.asarray(values, kind)
        data = data.reshape((1,) * (4 - data.ndim) + data.shape)
        weight = Weight(("values", data.shape, data.tobytes()), lambda: data)
        return self.weight(weight, data.shape, dtype)  # type: ignore[arg-type]

    # arithmetic

    def add(self, x: Node, y: Node | float) -> Node:
        return self._binary("add", x, y)

    def sub(self, x: Node, y: Node | float) -> Node:
        return self._binary("sub", x, y)

    def mul(self, x: Node, y: Node | float) -> Node:
        return self._binary("mul", x, y)

    def pow(self, x: Node, y: Node | float) -> Node:
        return self._binary("pow", x, y)

    def _binary(self, op: str, x: Node, y: Node | float) -> Node:
        if not isinstance(y, Node):
            y = self.const(y, x.dtype)
        if x.dtype != y.dtype:
            msg = f"{op}: {x} and {y} are of two dtypes"
            raise ValueError(msg)
        return self._make(op, (x, y), _broadcast(op, x.shape, y.shape))

    def unary(self, op: str, x: Node) -> Node:
        """relu, tanh, sigmoid, exp, sqrt, rsqrt, neg, identity"""
        return self._make(op, (x,), x.shape)

    def cast(self, x: Node, dtype: str) -> Node:
        return self._make("cast", (x,), x.shape, dtype)

    def reduce(self, op: str, x: Node, axis: int) -> Node:
        """reduce_sum, reduce_mean, reduce_max over one axis, which stays as one of 1."""
        shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
        return self._make(op, (x,), shape, axis=axis)

    def softmax(self, x: Node, axis: int = 3) -> Node:
        return self._make("softmax", (x,), x.shape, axis=axis)

    # products

    def conv1x1(self, x: Node, w: Node) -> Node:
        """[B, in, H, S] by [out, in, 1, 1]: [B, out, H, S]"""
        (b, c, h, s), (out, inner, *ones) = x.shape, w.shape
        if inner != c or ones != [1, 1]:
            msg = f"conv1x1: {x} does not go with {w}"
            raise ValueError(msg)
        return self._make("conv1x1", (x, w), (b, out, h, s))

    def matmul(
        self, x: Node, y: Node, *, transpose_x: bool = False, transpose_y: bool = False
    ) -> Node:
        """Of the last two axes, either turned first; the first two broadcast."""
        (m, k), (k2, n) = x.shape[2:], y.shape[2:]
        m, k = (k, m) if transpose_x else (m, k)
        k2, n = (n, k2) if transpose_y else (k2, n)
        if k != k2:
            msg = f"matmul: {x} does not go with {y}"
            raise ValueError(msg)
        first = _broadcast("matmul", (*x.shape[:2], 1, 1), (*y.shape[:2], 1, 1))[:2]
        flags: dict[str, Any] = {"transpose_x": transpose_x, "transpose_y": transpose_y}
        return self._make("matmul", (x, y), (*first, m, n), **flags)

    # moves

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        if math.prod(shape) != x.size or len(shape) != 4:
            msg = f"reshape: {x} does not become {list(shape)}"
            raise ValueError(msg)
        return x if tuple(shape) == x.shape else self._make("reshape", (x,), tuple(shape))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        if tuple(perm) == (0, 1, 2, 3):
            return x
        return self._make("transpose", (x,), tuple(x.shape[a] for a in perm), perm=tuple(perm))

    def slice(self, x: Node, begin: Sequence[int], size: Sequence[int]) -> Node:
        axes = zip(begin, size, x.shape, strict=True)
        inside = all(b >= 0 and n > 0 and b + n <= m for b, n, m in axes)
        if not inside:
            msg = f"slice: {list(size)} from {list(begin)} on is not within {x}"
            raise ValueError(msg)
        if tuple(size) == x.shape:
            return x
        return self._make("slice", (x,), tuple(size), begin=tuple(begin), size=tuple(size))

    def split(self, x: Node, axis: int, sizes: Sequence[int]) -> list[Node]:
        if sum(sizes) != x.shape[axis] or min(sizes) < 1:
            msg = f"split: axis {axis} of {x} is not {list(sizes)}"
            raise ValueError(msg)
        if len(sizes) == 1:
            return [x]
        how: dict[str, Any] = {"axis": axis, "sizes": tuple(sizes)}
        shapes = [tuple(n if a == axis else m for a, m in enumerate(x.shape)) for n in sizes]
        return [self._make("split", (x,), s, **how, index=i) for i, s in enumerate(shapes)]

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int]) -> Node:
        shape = tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True))
        if shape == x.shape:
            return x
        return self._make("pad", (x,), shape, before=tuple(before), after=tuple(after))

    def joined(self, parts: Sequence[Node], axis: int) -> Node:
        """The parts behind each other, without the banned concat: padded, and added.

        Zeros are added to each, which is exact but for the sign of a zero, and for values that
        are not finite, which stay where they are.
        """
        total, at, result = sum(p.shape[axis] for p in parts), 0, None
        for part in parts:
            n = part.shape[axis]
            before = [at if a == axis else 0 for a in range(4)]
            after = [total - at - n if a == axis else 0 for a in range(4)]
            placed = self.pad(part, before, after)
            result = placed if result is None else self.add(result, placed)
            at += n
        if result is None:
            msg = "joined: nothing to join"
            raise ValueError(msg)
        return result

    # how nodes are made

    def _make(
        self,
        op: str,
        inputs: tuple[Node, ...],
        shape: Sequence[int],
        dtype: str = "",
        **attributes: Any,
    ) -> Node:
        four: Shape4 = tuple(shape)  # type: ignore[assignment]
        dtype = dtype or inputs[0].dtype
        key = (op, *map(id, inputs), four, dtype, *sorted(attributes.items()))
        return self._keep(key, Node(op, inputs, four, dtype, attributes, self.name))

    def _keep(self, key: Hashable, node: Node) -> Node:
        return self._known.setdefault(key, node)


def _broadcast(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(itertools.starmap(max, zip(a, b, strict=True)))
    if any(n not in (1, m) for side in (a, b) for n, m in zip(side, shape, strict=True)):
        msg = f"{op}: {list(a)} and {list(b)} do not broadcast"
        raise ValueError(msg)
    return shape
