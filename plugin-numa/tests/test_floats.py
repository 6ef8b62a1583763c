"""Products and gathers of floats, of experts, and of types that are decoded block by block."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import umbel_numa
from umbel.errors import OptionError
from umbel.gguf.types import BY_NAME, DType, dequantise
from umbel.graph import Builder, Graph, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel.plugins import Plugins
from umbel_kit.compare import nmse
from umbel_kit.conformance.inputs import random_blocks
from umbel_kit.device import as_stored
from umbel_numa.engine import Engine
from umbel_numa.library import variants
from umbel_numa.memory import NativeMemory
from umbel_numa.operations.products import READABLE

KERNELS = [name for name, runs in variants().items() if runs]
RAW = sorted(d.name for d in READABLE if d.quantised)
TYPES = ["f32", "f16", "bf16", "q4_1", "iq2_s", "nvfp4"]
RNG = np.random.default_rng(7)


def weights(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random, as a file has them."""
    if dtype.quantised:
        return random_blocks(shape, dtype, np.random.default_rng(3))
    values = np.random.default_rng(3).standard_normal(shape, np.float32)
    return as_stored(values, dtype)


def run(engine: Engine, graph: Graph, arrays: dict[Tensor, np.ndarray]) -> np.ndarray:
    """The last node's values."""
    kind, slots = NativeMemory(engine), {}
    for node in graph.nodes:
        kind.note(node)
    for t, array in arrays.items():
        if t.role is Role.WEIGHT:
            slots[t] = Slot(kind.store(t, array))
    for t in (*(a for a in arrays if a not in slots), *graph.nodes):
        slots[t] = Slot(kind.allocate(t.nbytes, "compute"))
        if t in arrays:
            slots[t].buffer.write(0, arrays[t])
    split = SplitGraph(id(graph), graph.nodes, tuple(arrays), graph.outputs, slots)
    engine.compute(split)
    engine.forget(split.uid)
    out = graph.nodes[-1]
    return slots[out].buffer.read(0, out.nbytes).view(np.float32).reshape(out.shape)


def product(engine: Engine, w: np.ndarray, dtype: DType, x: np.ndarray) -> np.ndarray:
    build = Builder(OPS)
    leaf = build.leaf(Role.WEIGHT, "w", (*w.shape[:-1], x.shape[-1]), dtype)
    token = build.leaf(Role.INPUT, "x", x.shape, BY_NAME["f32"])
    graph = build.graph([build.mul_mat(leaf, token)])
    return run(engine, graph, {leaf: w, token: x})


def chosen(
    engine: Engine, w: np.ndarray, dtype: DType, x: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    build = Builder(OPS)
    leaf = build.leaf(Role.WEIGHT, "w", (*w.shape[:-1], x.shape[-1]), dtype)
    token = build.leaf(Role.INPUT, "x", x.shape, BY_NAME["f32"])
    which = build.leaf(Role.INPUT, "ids", ids.shape, BY_NAME["i32"])
    graph = build.graph([build.mul_mat_id(leaf, token, which)])
    return run(engine, graph, {leaf: w, token: x, which: ids})


def gathered(engine: Engine, w: np.ndarray, dtype: DType, ids: np.ndarray) -> np.ndarray:
    """Rows of a weight that a product reads as well, as tied embeddings are."""
    build = Builder(OPS)
    cols = (
        w.shape[-1] // dtype.block_bytes * dtype.block if w.dtype == np.uint8 else w.shape[-1]
    )
    leaf = build.leaf(Role.WEIGHT, "w", (w.shape[0], cols), dtype)
    which = build.leaf(Role.INPUT, "ids", ids.shape, BY_NAME["i32"])
    rows = build.get_rows(leaf, which)
    product, graph = build.mul_mat(leaf, rows), build.graph([rows])
    kind = NativeMemory(engine)
    kind.note(product)
    return run(engine, graph, {leaf: w, which: ids})


@pytest.fixture(params=KERNELS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine(2, kernels=request.param)
    yield engine
    engine.close()


def opened(kernels: str, threads: int, precise: bool = False) -> Engine:
    return Engine(threads, kernels, precise)


@pytest.mark.parametrize("name", RAW)
def test_blocks_are_decoded_as_gguf_does(engine, name) -> None:
    dtype = BY_NAME[name]
    rows = random_blocks((9, 2 * dtype.block), dtype, np.random.default_rng(1))
    ids = np.array([[3, 0], [8, 3]], np.int32)
    found = gathered(engine, rows, dtype, ids)
    assert np.array_equal(found, dequantise(rows, dtype)[ids])


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_rows_of_packed_floats_stay_exact(engine, name) -> None:
    w = weights((20, 40), BY_NAME[name])
    ids = np.arange(20, dtype=np.int32)
    assert np.array_equal(gathered(engine, w, BY_NAME[name], ids), dequantise(w, BY_NAME[name]))


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_one_result(name, precise) -> None:
    """Whatever the kernels, the number of threads and the rows beside it."""
    dtype, x = BY_NAME[name], RNG.standard_normal((37, 512), np.float32)
    w = weights((35, 512), dtype)
    results = []
    for kernels, threads in (*((k, 2) for k in KERNELS), (KERNELS[0], 1), (KERNELS[0], 3)):
        engine = opened(kernels, threads, precise)
        results.append(product(engine, w, dtype, x))
        alone = [product(engine, w, dtype, x[i : i + 1]) for i in (0, 5, 36)]
        assert np.array_equal(results[-1][[0, 5, 36]], np.concatenate(alone))
        engine.close()
    assert all(np.array_equal(results[0], other) for other in results[1:])
    exact = x.astype(np.float64) @ dequantise(w, dtype).astype(np.float64).T
    assert nmse(exact, results[0]) < (1e-12 if precise else 5e-4)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_experts_give_what_each_gives_alone(name, precise) -> None:
    dtype, x = BY_NAME[name], RNG.standard_normal((40, 2, 256), np.float32)
    w = weights((5, 35, 256), dtype)
    ids = RNG.integers(0, 4, (40, 2)).astype(np.int32)  # nobody chooses the last
    for kernels, threads in ((KERNELS[0], 1), (KERNELS[0], 3), (KERNELS[-1], 2)):
        engine = opened(kernels, threads, precise)
        found = chosen(engine, w, dtype, x, ids)
        for t in (0, 17, 39):
            for place in range(2):
                alone = product(engine, w[ids[t, place]], dtype, x[t, place][None])
                assert np.array_equal(found[t, place], alone[0])
        engine.close()


@pytest.mark.parametrize("large", [(1, 1), (1, 100), (1, 3000), (100, 1), (100, 100)], ids=str)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sixteen_bits_are_enough(name, large) -> None:
    """Blocks of weights and of activations may hold one value that is much larger."""
    dtype, rng = BY_NAME[name], np.random.default_rng(5)
    values = rng.standard_normal((64, 576), np.float32)
    x = rng.standard_normal((9, 576), np.float32)
    values[:, ::32] *= large[0]
    x[:, 7::32] *= large[1]
    w = as_stored(values, dtype)
    exact = x.astype(np.float64) @ dequantise(w, dtype).astype(np.float64).T
    engine = opened(KERNELS[0], 2)
    assert nmse(exact, product(engine, w, dtype, x)) < 1e-7
    engine.close()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_rough_rows_beside_smooth_ones(engine, name) -> None:
    """Of some rows in a tile the rest of a block is multiplied as well; each is as alone."""
    dtype, rng = BY_NAME[name], np.random.default_rng(6)
    w, x = weights((70, 96), dtype), rng.standard_normal((29, 96), np.float32)
    x[::3, 40] *= 3000
    x[1::5, 70] *= 3000
    alone = [product(engine, w, dtype, row[None]) for row in x]
    assert np.array_equal(product(engine, w, dtype, x), np.concatenate(alone))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_weights_that_are_not_finite(engine, name, caplog) -> None:
    dtype, x = BY_NAME[name], np.ones((3, 64), np.float32)
    values = np.ones((20, 64), np.float32)
    values[2, 5], values[4, 9], values[6, 1] = np.inf, -np.inf, np.nan
    with caplog.at_level(logging.WARNING, "umbel"):
        found = product(engine, as_stored(values, dtype), dtype, x)
    assert [r.getMessage() for r in caplog.records] == [
        "the values of w are too uneven to be packed: products in float32"
    ]
    assert (found[:, 2] == np.inf).all()
    assert (found[:, 4] == -np.inf).all()
    assert np.isnan(found[:, 6]).all()
    assert (np.delete(found, [2, 4, 6], axis=1) == 64).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["f16", "q4_0", "q4_1", "q8_0", "q6_k", "q2_k"])
def test_activations_that_are_not_finite_stay_in_their_row(engine, name, odd) -> None:
    """And show there, whatever activations are rounded to."""
    x = np.ones((3, 256), np.float32)
    x[1, 40] = odd
    found = product(engine, weights((20, 256), BY_NAME[name]), BY_NAME[name], x)
    assert not np.isfinite(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()


def test_a_product_of_computed_matrices_in_any_order_of_axes(engine) -> None:
    """Leading axes that are shared, and weights whose columns are contiguous."""
    w = RNG.standard_normal((2, 3, 50, 21), np.float32)  # (..., in, out)
    x = RNG.standard_normal((2, 6, 11, 50), np.float32)
    build = Builder(OPS)
    leaf = build.leaf(Role.INPUT, "w", w.shape, BY_NAME["f32"])
    token = build.leaf(Role.INPUT, "x", x.shape, BY_NAME["f32"])
    turned = build.permute(leaf, axes=(0, 1, 3, 2))
    node = build.mul_mat(turned, token)
    graph = Graph((node,), (node,))
    found = run(engine, graph, {leaf: w, token: x})
    expected = x.astype(np.float64) @ w.repeat(2, axis=1)
    assert nmse(expected, found) < 1e-13


def test_the_option_is_yes_or_no() -> None:
    plugins = Plugins()
    plugins.add("numa", umbel_numa)
    options = plugins.option_values
    assert options("numa", {"precise": "true"})["precise"] is True
    assert options("numa", {"precise": False})["precise"] is False
    with pytest.raises(OptionError, match=r"numa\.precise"):
        options("numa", {"precise": "maybe"})
