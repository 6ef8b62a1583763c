"""Weights and states as the host keeps them."""

from __future__ import annotations

import logging

import attrs
import numpy as np
import pytest
from umbel.errors import DeviceError
from umbel.gguf.types import BY_NAME, F16, F32, Q8_0, quantise
from umbel.graph import Role, Tensor
from umbel_ane.memory import AneMemory
from umbel_ane.profile import load

MEMORY = AneMemory(load())


def _tensor(shape: tuple[int, ...], dtype=F32, name: str = "w", role=Role.WEIGHT) -> Tensor:
    return Tensor(shape, dtype, role, name)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "f16"])
@pytest.mark.parametrize("shape", [(64,), (6, 64), (2, 3, 64)], ids=str)
def test_weights_become_float16(dtype, shape) -> None:
    kind = BY_NAME[dtype]
    plain = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    told: list[int] = []
    raw = quantise(plain, kind)
    held = MEMORY.store(_tensor(shape, kind), raw, told.append)
    assert held.tensor.dtype is F16
    assert np.array_equal(held.read(0, held.nbytes).view(np.float16), held.rows().reshape(-1))
    assert np.allclose(held.rows(), plain, rtol=2e-2, atol=2e-2)
    assert told[-1:] == ([] if kind is F16 else [raw.nbytes])


def test_a_large_table_stays_as_it_is() -> None:
    memory = AneMemory(attrs.evolve(load(), max_channels=16))
    table = _tensor((17, 32), Q8_0)
    raw = quantise(np.ones((17, 32), np.float32), Q8_0)
    held = memory.store(table, raw)
    assert held.array is raw
    assert np.allclose(held.rows([3, 3]), 1, rtol=1e-2)
    assert memory.accepts(_tensor((16, 32), Q8_0)) is F16


def test_a_value_that_does_not_fit_is_named() -> None:
    values = np.zeros((3, 5, 700000), np.float32)
    values[2, 1, 31], values[1, 1, 0] = -65600.0, np.inf
    with pytest.raises(DeviceError, match=r"'blk\.0\.ffn\.weight'") as caught:
        MEMORY.store(_tensor(values.shape, name="blk.0.ffn.weight"), values)
    assert caught.value.got == "-65600.0 at [2, 1, 31]"


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_what_is_not_finite_is_told(dtype, caplog) -> None:
    """What a file has, it has; but it is said."""
    values = np.full((2, 4), np.inf, dtype.numpy)
    with caplog.at_level(logging.WARNING):
        MEMORY.store(_tensor((2, 4), dtype), values)
    assert "'w' has values that are not finite" in caplog.text


def test_states() -> None:
    for name, kind in {
        "k_cache.0": F16,
        "v_cache.1": F16,
        "lora_a.x": F16,
        "ssm.0": F32,
    }.items():
        assert MEMORY.accepts(_tensor((4, 8), F32, name, Role.STATE)) is kind


def test_buffers_copy_from_each_other() -> None:
    one, other = MEMORY.allocate(64, "state"), MEMORY.allocate(64, "compute")
    other.write(8, np.arange(4, dtype=np.int32))
    assert one.copy_from(16, other, 8, 16)
    assert one.read(16, 16).view(np.int32).tolist() == [0, 1, 2, 3]
    assert one.since(0) == [(16, 16)]
    assert one.handle % MEMORY.alignment == 0
