"""Packed weights: their values are the file's, and all kernels give the same products."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.gguf.types import BY_NAME, dequantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel_kit.conformance.inputs import random_blocks
from umbel_numa.engine import Engine
from umbel_numa.library import library, variants
from umbel_numa.memory import NativeMemory, NativeWeight

TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
TYPES += ["iq4_nl", "iq4_xs", "mxfp4"]
KERNELS = [name for name, runs in variants().items() if runs]


def packed(engine: Engine, raw: np.ndarray, shape: tuple[int, ...], dtype: str) -> NativeWeight:
    memory = NativeMemory(engine, {"w"})
    return memory.store(Tensor(shape, BY_NAME[dtype], Role.WEIGHT, "w"), raw)


def values_of(weight: NativeWeight) -> np.ndarray:
    """All of them, out of the packed layout."""
    assert weight.packed()
    rows, cols = weight.tensor.shape
    out = np.empty((rows, cols), np.float32)
    for i, row in enumerate(out):
        library().un_unpack_row(weight.packed(), i, row.ctypes.data)
    return out


def product(
    kernels: str, dtype: str, raw: np.ndarray, x: np.ndarray, *, turned: bool = False
) -> np.ndarray:
    """x times the rows of a weight; `turned`, columns of a wider array are the rows of x."""
    engine = Engine(2, kernels)
    try:
        width = BY_NAME[dtype].block * raw.shape[1] // BY_NAME[dtype].block_bytes
        build = Builder(OPS)
        w = build.leaf(Role.WEIGHT, "w", (len(raw), width), BY_NAME[dtype])
        stored = np.pad(x.T, ((0, 0), (0, 1))) if turned else x
        given = build.leaf(Role.INPUT, "x", stored.shape, BY_NAME["f32"])
        rows = build.view(given, axis=1, start=0, stop=len(x)) if turned else given
        node = build.mul_mat(w, build.permute(rows, axes=(1, 0)) if turned else rows)
        memory = NativeMemory(engine)
        slots = {w: Slot(packed(engine, raw, w.shape, dtype))}
        for t in (given, node):
            slots[t] = Slot(memory.allocate(t.nbytes, "compute"))
        slots[given].buffer.write(0, stored)
        engine.compute(SplitGraph(1, (node,), (w, given), (node,), slots))
        return slots[node].buffer.read(0, node.nbytes).view(np.float32).reshape(node.shape)
    finally:
        engine.close()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", TYPES)
def test_values(dtype: str, kernels: str) -> None:
    """A packed weight reads back as the very floats that the file's bytes stand for."""
    kind, engine = BY_NAME[dtype], Engine(2, kernels)
    rng = np.random.default_rng(7)
    try:
        for rows in (1, 15, 17, 37):
            shape = rows, 3 * kind.block
            raw = random_blocks(shape, kind, rng)
            weight = packed(engine, raw, shape, dtype)
            np.testing.assert_array_equal(values_of(weight), dequantise(raw, kind))
    finally:
        engine.close()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("bits", range(0, 256, 17))
def test_all_scales_of_mxfp4(bits: int, kernels: str) -> None:
    """Also those that are no normal numbers, and the largest."""
    raw = np.full((1, 17), bits, np.uint8)
    raw[0, 0] = bits // 17 if bits < 128 else bits
    engine = Engine(1, kernels)
    try:
        got = values_of(packed(engine, raw, (1, 32), "mxfp4"))
        np.testing.assert_array_equal(got, dequantise(raw, BY_NAME["mxfp4"]))
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", TYPES)
def test_one_result(dtype: str) -> None:
    """A row has the same bits from all kernels and beside any number of other rows."""
    kind, rng = BY_NAME[dtype], np.random.default_rng(11)
    width = max(kind.block, 640 // kind.block * kind.block)
    raw = random_blocks((53, width), kind, rng)
    x = rng.standard_normal((131, width), np.float32)
    expected = product(KERNELS[0], dtype, raw, x)
    for kernels in KERNELS:
        for rows in (1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 15, 17, 119, 131):
            got = product(kernels, dtype, raw, x[:rows])
            np.testing.assert_array_equal(got.view(np.int32), expected[:rows].view(np.int32))


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_any_strides(rows: int) -> None:
    """How far apart the values of a row lie changes nothing."""
    rng = np.random.default_rng(rows)
    raw = random_blocks((20, 64), BY_NAME["q8_0"], rng)
    x = rng.standard_normal((rows, 64), np.float32)
    for kernels in KERNELS:
        expected = product(kernels, "q8_0", raw, x)
        got = product(kernels, "q8_0", raw, x, turned=True)
        np.testing.assert_array_equal(got.view(np.int32), expected.view(np.int32))


def test_quantised_activations() -> None:
    """Rows that are tiny, zero or no multiple of 32 long are as good as others."""
    rng, kind = np.random.default_rng(3), BY_NAME["q8_0"]
    raw = random_blocks((5, 64), kind, rng)
    sizes = np.array([1, 0, 1e-45, 1e-30, 1e30], np.float32)[:, None]
    x = rng.standard_normal((5, 64), np.float32) * sizes
    expected = x @ dequantise(raw, kind).T
    results = [product(kernels, "q8_0", raw, x) for kernels in KERNELS]
    for got in results:
        np.testing.assert_allclose(got, expected, rtol=0.1, atol=2e-28)
        np.testing.assert_array_equal(got.view(np.int32), results[0].view(np.int32))
