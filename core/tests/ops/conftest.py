"""Runs one operation: by its reference, or by its decomposition down to what has none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from umbel.gguf.types import BY_NAME, F32
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel_kit.reference import evaluate


def leaf(array, i=0, role=Role.INPUT, dtype=None):
    """A leaf that `array` can be fed to."""
    name = dtype or {"f": "f32", "i": "i32"}[array.dtype.kind]
    if array.dtype == np.float16:
        name = "f16"
    shape = array.shape
    if array.dtype == np.uint8:
        shape = (*shape[:-1], shape[-1] // BY_NAME[name].block_bytes * BY_NAME[name].block)
    return Builder(OPS).leaf(role, f"in{i}", shape, BY_NAME[name])


def lower(build, tensor, dtype, memo=None):
    """`tensor` from operations that have no decomposition."""
    memo = {} if memo is None else memo
    if tensor.op is None:
        return tensor
    if tensor not in memo:
        inputs = [lower(build, t, dtype, memo) for t in tensor.inputs]
        made = build.apply(tensor.op, *inputs, **tensor.attrs)
        if made.op.decompose is not None:
            made = lower(build, made.op.decompose(build, made, dtype), dtype, memo)
        memo[tensor] = made
    return memo[tensor]


def _node(op, arrays, roles, attributes):
    leaves = [leaf(a, i, roles.get(i, Role.INPUT)) for i, a in enumerate(arrays)]
    build = Builder(OPS)
    feeds = dict(zip(leaves, arrays, strict=True))
    return build, build.apply(OPS[op], *leaves, **attributes), feeds


def reference(op, *arrays, **attributes):
    """The value by the reference; its shape is what the shape rule says."""
    build, node, feeds = _node(op, arrays, {}, attributes)
    (value,) = evaluate(build.graph([node]), feeds)
    assert node.shape == value.shape
    assert node.dtype.numpy in (None, value.dtype)
    return value


def decomposed(op, *arrays, compute="f32", **attributes):
    """The value by the decomposition for a device that computes in `compute`."""
    dtype = BY_NAME[compute]
    build, node, feeds = _node(op, arrays, {}, attributes)
    assert node.op.decompose is not None
    result = lower(build, node, dtype)
    assert result.shape == node.shape
    assert all(n.op.decompose is None for n in build.graph([result]).nodes)
    (value,) = evaluate(build.graph([result]), feeds, dtype=dtype)
    return value


def nmse(expected, actual):
    """Squared error over squared size; infinite where `actual` is not finite."""
    expected = np.asarray(expected, np.float64)
    if not np.isfinite(actual).all():
        return np.inf
    error = ((expected - actual) ** 2).sum()
    return error / max((expected**2).sum(), 1e-30) if error else 0.0


@pytest.fixture
def ops():
    return SimpleNamespace(
        reference=reference, decomposed=decomposed, nmse=nmse, lower=lower, leaf=leaf, f32=F32
    )


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def normal(rng):
    """normal(*shape): float32 values of a normal distribution, different at each call."""
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)
