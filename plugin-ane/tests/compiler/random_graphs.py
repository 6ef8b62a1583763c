"""Graphs at random, over all operations of the IR, with values for their inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs
import numpy as np
from hypothesis import strategies as st
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Graph, Node, Weight

Draw = Callable[[st.SearchStrategy], object]
DIMS = (1, 2, 3, 4, 6, 16)
SCALARS = (1.0, -1.0, 0.0, -0.0, 0.5, 2.0, 0.3)


@attrs.frozen(eq=False)
class Sample:
    graph: Graph
    values: dict[str, np.ndarray]


@attrs.define(eq=False)
class _Maker:
    draw: Draw
    build: IRBuilder
    nodes: list[Node] = attrs.field(factory=list)
    weights: int = 0

    def pick(self, of=lambda n: True) -> Node | None:
        fitting = [n for n in self.nodes if of(n)]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def one_of(self, *choices):
        return self.draw(st.sampled_from(choices))

    def weight(self, shape) -> Node:
        self.weights += 1
        values = np.random.default_rng(self.weights).standard_normal(shape).astype("f")
        values = values.astype(np.float16)
        return self.build.weight(Weight(("w", self.weights), lambda: values), shape)

    # operations

    def unary(self) -> Node:
        op = self.one_of("relu", "tanh", "sigmoid", "neg", "identity")
        return self.raw(op, self.pick())

    def positive(self) -> Node:
        """sqrt, rsqrt and exp of what they are defined for."""
        op, x = self.one_of("sqrt", "rsqrt", "exp", "pow"), self.pick()
        x = self.build.add(self.build.unary("sigmoid", x), 0.25)
        return (
            self.build.pow(x, self.one_of(-0.5, 1.0, 2.0)) if op == "pow" else self.raw(op, x)
        )

    def binary(self) -> Node:
        op, x = self.one_of("add", "sub", "mul"), self.pick()
        y = self.pick(lambda n: n.dtype == x.dtype and _fits(n.shape, x.shape))
        return getattr(self.build, op)(x, y)

    def scalar(self) -> Node:
        op, x = self.one_of("add", "sub", "mul"), self.pick()
        number = self.build.const(self.one_of(*SCALARS), x.dtype)
        pair = (x, number) if op == "sub" or self.one_of(True, False) else (number, x)
        return getattr(self.build, op)(*pair)

    def conv1x1(self) -> Node | None:
        x = self.pick(lambda n: n.dtype == "fp16")
        if x is None:
            return None
        return self.build.conv1x1(x, self.weight((self.one_of(2, 3, 8, 40), x.shape[1], 1, 1)))

    def matmul(self) -> Node:
        x = self.pick()
        y = self.pick(
            lambda n: (
                n.dtype == x.dtype and n.shape[:2] == x.shape[:2] and x.shape[3] in n.shape[2:]
            )
        )
        if y is None:
            return self.build.matmul(x, x, transpose_y=True)
        flip = x.shape[3] != y.shape[2]
        return self.build.matmul(x, y, transpose_y=flip)

    def softmax(self) -> Node:
        return self.build.softmax(self.pick(), self.one_of(0, 1, 2, 3))

    def reduction(self) -> Node:
        op = self.one_of("reduce_sum", "reduce_mean", "reduce_max")
        return self.build.reduce(op, self.pick(), self.one_of(0, 1, 2, 3))

    def cast(self) -> Node:
        return self.build.cast(self.pick(), self.one_of("fp16", "fp32"))

    def reshape(self) -> Node:
        x = self.pick()
        order = self.draw(st.permutations(x.shape))
        merged = (order[0], order[1] * order[2], 1, order[3])
        return self.build.reshape(x, self.one_of(tuple(order), merged))

    def transpose(self) -> Node:
        return self.build.transpose(self.pick(), tuple(self.draw(st.permutations(range(4)))))

    def slice(self) -> Node:
        x = self.pick()
        begin = [self.draw(st.integers(0, n - 1)) for n in x.shape]
        size = [self.draw(st.integers(1, n - b)) for n, b in zip(x.shape, begin, strict=True)]
        return self.build.slice(x, begin, size)

    def split(self) -> Node:
        x, axis = self.pick(), self.one_of(0, 1, 2, 3)
        first = self.draw(st.integers(1, x.shape[axis]))
        sizes = [first, x.shape[axis] - first] if first < x.shape[axis] else [first]
        parts = self.build.split(x, axis, sizes)
        self.nodes.extend(parts[1:])
        return parts[0]

    def pad(self) -> Node:
        before, after = (
            [self.draw(st.integers(0, 2)) if a else 0 for a in range(4)] for _ in range(2)
        )
        return self.build.pad(self.pick(), before, after)

    def raw(self, op: str, x: Node) -> Node:
        return self.build.unary(op, x)


def _fits(a, b) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(a, b, strict=True))


@st.composite
def samples(draw: Draw, most: int = 24) -> Sample:
    """A graph of up to `most` operations on one to three inputs, with two outputs or more."""
    maker = _Maker(draw, IRBuilder())
    values = {}
    seed = draw(st.integers(0, 2**32 - 1))
    for i in range(draw(st.integers(1, 3))):
        shape = (1, *(draw(st.sampled_from(DIMS)) for _ in range(3)))
        maker.nodes.append(maker.build.input(f"x{i}", shape))
        values[f"x{i}"] = (
            np.random.default_rng([seed, i]).standard_normal(shape).astype(np.float16)
        )
    steps = (
        *(maker.unary, maker.positive, maker.binary, maker.scalar, maker.conv1x1, maker.matmul),
        *(maker.softmax, maker.reduction, maker.cast, maker.reshape, maker.transpose),
        *(maker.slice, maker.split, maker.pad),
    )
    for _ in range(draw(st.integers(1, most))):
        made = draw(st.sampled_from(steps))()
        if made is not None and made.size <= 1 << 13 and max(made.shape) <= 512:
            maker.nodes.append(made)
    count = draw(st.integers(1, 3))
    ends = [maker.nodes[-1], *(maker.pick() for _ in range(count))]
    names = itertools.count()
    return Sample(Graph({f"out{next(names)}": n for n in ends}), values)
