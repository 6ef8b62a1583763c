"""Probes of one dtype: what NumPy makes of the same values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from umbel_cann.chips import NARROW
from umbel_cann.probing.probe import Data, Probe, Step, Views
from umbel_cann.views import FLOAT, FLOAT16, KEEP, ONE, Numbers, Scalar

LAST = Numbers((1,))
EPS = 1e-5
# Operators that take rows of a table, with their axis; and which rows.
TAKEN = (("GatherV2", (0,)), ("IndexSelect", (0,)), ("Embedding", ()))
PLACES = np.array([3, 0, 15, 7], np.int32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


UNARY: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sigmoid": _sigmoid,
    "Silu": lambda x: x * _sigmoid(x),
    "Exp": np.exp,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Gelu": _gelu,
}
OF_POSITIVE: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
}


class Maker:
    """Makes the probes of one dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.kind: Any = np.dtype({"f16": np.float16, "f32": np.float32}[dtype])
        self.number = FLOAT16 if dtype == "f16" else FLOAT
        self._rng = np.random.default_rng(0)
        self.x, self.y = self.some(4, 64), self.some(4, 64)
        self.positive = (np.abs(self.x) + 0.1).astype(self.kind)

    def some(self, *shape: int) -> np.ndarray:
        """Values that this dtype has exactly."""
        return self._rng.standard_normal(shape).astype(self.kind)

    def out(self, expected: np.ndarray, before: np.ndarray | None = None) -> Data:
        return Data(before, expected.astype(self.kind))

    def probe(self, operator: str, *steps: Step, **more: Any) -> Probe:
        """Steps of one operator, without its name."""
        named = tuple((operator, *step) for step in steps)
        return Probe(operator, self.dtype, named, **more)

    # families

    def basic(self) -> Iterator[Probe]:
        """What everything else needs."""
        x, y, row, out, probe = self.x, self.y, self.some(64), self.out, self.probe
        a, b, r = wide(x), wide(y), wide(row)
        other = FLOAT if self.number == FLOAT16 else FLOAT16
        cast = x.astype(np.float32 if other == FLOAT else np.float16)
        yield probe("Add", (x, y, ONE, out(a + b)), (x, row, ONE, out(a + r)))
        yield probe("Cast", (x, other, Data(after=cast)))
        yield probe("Mul", (x, y, out(a * b)), (x, row, out(a * r)))
        yield from self.products()
        yield probe("Muls", (x, Scalar(-0.5), out(a * -0.5)))
        yield probe("Adds", (x, Scalar(1.5), ONE, out(a + 1.5)))
        yield probe("Sub", (x, y, ONE, out(a - b)), (x, row, ONE, out(a - r)))
        yield probe("Div", (x, self.positive, out(a / wide(self.positive))))
        yield probe("InplaceAdd", (out(a + b, x), y, ONE))
        yield probe("InplaceFillScalar", (out(np.full_like(a, 3), x), Scalar(3)))
        yield copies(x, self.dtype)

    def products(self) -> Iterator[Probe]:
        """Weights (out, in) are read turned; of float32 nothing may be lost."""
        w, many, weights = self.some(32, 64), self.some(3, 4, 64), self.some(3, 32, 64)
        turned, stack = w.T, weights.swapaxes(1, 2)
        product, batch = wide(self.x) @ wide(turned), wide(many) @ wide(stack)
        exact = 1e-5 if self.dtype == "f32" else 0.0
        bias = self.some(32)
        added = self.out(product + wide(bias))
        step = (bias, self.x, turned, ONE, ONE, added, KEEP)
        yield self.probe("Addmm", step, within=exact)
        for name in ("Mm", "Matmul"):
            steps = (
                (self.x, m, self.out(product), KEEP)
                for m in (turned, np.ascontiguousarray(turned))
            )
            yield self.probe(name, *steps, within=exact)
        steps = ((many, m, self.out(batch), KEEP) for m in (stack, np.ascontiguousarray(stack)))
        yield self.probe("BatchMatMul", *steps, within=exact)

    def elementwise(self) -> Iterator[Probe]:
        a, p = wide(self.x), wide(self.positive)
        for name, of in UNARY.items():
            yield self.probe(name, (self.x, self.out(of(a))))
        for name, of in OF_POSITIVE.items():
            yield self.probe(name, (self.positive, self.out(of(p))))
        two = ((self.x, how, self.out(_gelu(a))) for how in (0, 1))  # by erf, by tanh
        yield self.probe("GeluV2", *two)
        clamped = self.out(np.clip(a, -0.5, 0.5))
        yield self.probe("Clamp", (self.x, Scalar(-0.5), Scalar(0.5), clamped))
        more = (self.x, Scalar(0.5), Data(after=self.x > 0.5))
        yield self.probe("GtScalar", more)
        soft = self.out(np.log1p(np.exp(a)))
        yield self.probe("Softplus", (self.x, ONE, Scalar(20.0), soft))
        size = (self.x.reshape(4, 64, 1), ONE, Numbers((2,)), False, self.out(np.abs(a)))
        yield self.probe("Norm", size)  # over one value: how large it is
        yield self.probe("PowScalarTensor", (Scalar(math.e), self.x, self.out(np.exp(a))))

    def rows(self) -> Iterator[Probe]:
        """Sums, orders, rows of tables, their joins."""
        x, y, out, number = self.x, self.y, self.out, self.number
        sums = wide(x).sum(1, keepdims=True)
        yield self.probe("ReduceSum", (x, LAST, True, number, out(sums)))
        yield self.probe("Mean", (x, LAST, True, number, out(sums / 64)))
        cats = ((Views([x, y]), axis, out(np.concatenate([x, y], axis))) for axis in (0, 1))
        yield self.probe("Cat", *cats)
        table, ids = self.some(16, 64), PLACES
        for name, axis in TAKEN:
            yield self.probe(name, (table, *axis, ids, out(table[ids])))
        written = table.copy()
        written[ids] = x
        yield self.probe("InplaceIndexCopy", (out(written, table), 0, ids, x))
        distinct = np.stack([self._rng.permutation(64) for _ in range(4)])
        z, order = (distinct / 8).astype(self.kind), np.argsort(distinct)
        yield self.probe("Argsort", (z, 1, False, Data(after=order)))
        equal = (distinct // 2).astype(self.kind)  # of two the first is to stay the first
        first = np.argsort(-equal, axis=1, kind="stable")
        ordered = out(np.take_along_axis(equal, first, 1))
        yield self.probe("Sort", (equal, True, 1, True, ordered, Data(after=first)))
        top = order[:, ::-1][:, :5].copy()
        best = out(np.take_along_axis(z, top, 1))
        yield self.probe("Topk", (z, 5, 1, True, True, best, Data(after=top)))

    def norms(self) -> Iterator[Probe]:
        x, y, g, b, out = self.x, self.y, self.some(64), self.some(64), self.out
        shape, both = Numbers((64,)), wide(x) + wide(y)
        normed = wide(x) - wide(x).mean(1, keepdims=True)
        normed /= np.sqrt(normed.var(1, keepdims=True) + EPS)
        scaled = out(normed * wide(g) + wide(b))
        yield self.probe(
            "LayerNorm",
            (x, shape, None, None, EPS, out(normed), None, None),
            (x, shape, g, b, EPS, scaled, None, None),
        )
        yield self.probe("RmsNorm", self._rms_norm(x, g))
        root = rstd(both)
        fused = out(both * root * wide(g)), Data(after=root.astype(np.float32)), out(both)
        yield self.probe("AddRmsNorm", (x, y, g, EPS, *fused))
        powers = np.exp(wide(x))
        yield self.probe("Softmax", (x, 1, out(powers / powers.sum(1, keepdims=True))))

    def _rms_norm(self, x: np.ndarray, g: np.ndarray) -> Step:
        root = rstd(wide(x))
        return x, g, EPS, self.out(wide(x) * root * wide(g)), Data(after=root.astype("f"))

    def fused(self) -> Iterator[Probe]:
        gate, up = self.some(4, 64), self.some(4, 64)
        both = np.concatenate([gate, up], 1)
        silu = wide(gate) * _sigmoid(wide(gate))
        yield self.probe("SwiGlu", (both, -1, self.out(silu * wide(up))))
        gelu = _gelu(wide(gate))  # by tanh: as near as the bound of a probe
        given = self.out(gelu * wide(up)), self.out(gelu)
        yield self.probe("GeGluV3", (both, -1, 1, True, *given))
        x, cos, sin = self.some(1, 3, 2, 64), self.some(1, 3, 1, 64), self.some(1, 3, 1, 64)
        first, second = np.split(x, 2, -1)
        halves = np.concatenate([-second, first], -1)
        pairs = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        turned = [wide(x) * wide(cos) + wide(t) * wide(sin) for t in (halves, pairs)]
        steps = ((x, cos, sin, mode, self.out(t)) for mode, t in enumerate(turned))
        yield self.probe("RotaryPositionEmbedding", *steps)

    def variants(self) -> Iterator[Probe]:
        few = 16 // self.kind.itemsize
        narrow = self._rms_norm(self.some(4, few), self.some(few))
        yield self.probe("RmsNorm", narrow, variant=NARROW)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def rstd(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPS))


def copies(x: np.ndarray, dtype: str) -> Probe:
    """From what is turned, and to it."""
    dense = np.ascontiguousarray(x.T)
    steps = ((Data(after=dense), x.T), (Data(after=x.T), dense))
    return Probe("InplaceCopy", dtype, tuple(("InplaceCopy", *step) for step in steps))
