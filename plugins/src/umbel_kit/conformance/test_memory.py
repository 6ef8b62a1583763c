"""What the device's memory promises beyond what operations need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from umbel.graph import Tensor


def _weight(shape: tuple[int, ...], name: str = "w") -> Tensor:
    from umbel.gguf.types import F32
    from umbel.graph import Role, Tensor

    return Tensor(shape, F32, Role.WEIGHT, name)


@pytest.mark.parametrize("shape", [(64,), (4, 64), (3, 4, 64)], ids=str)
def test_a_weight_beyond_its_dtype(target, shape) -> None:
    """A finite value never becomes infinite: it is kept, or the weight refused by name."""
    from umbel.errors import DeviceError
    from umbel.gguf.types import F16

    weight, kind = _weight(shape, "large"), target.buffer_type
    array = np.full(shape, 1e6, np.float32)
    if kind.accepts(weight) is not F16:
        kind.store(weight, array)
        return
    with pytest.raises(DeviceError) as caught:
        kind.store(weight, array)
    assert "large" in str(caught.value)
    kind.store(weight, np.full(shape, np.inf, np.float32))  # what a file has, it has


def test_weights_stay(target) -> None:
    """Each `store` makes a buffer of its own: the one before, though it bears the same name,
    holds what it held."""
    one, other = (np.full((4, 64), n, np.float32) for n in (1, 2))
    first = target.buffer_type.store(_weight((4, 64)), one)
    with target.lock:
        held = first.read(0, first.nbytes)
    second = target.buffer_type.store(_weight((4, 64)), other)
    with target.lock:
        assert np.array_equal(first.read(0, first.nbytes), held)
        assert not np.array_equal(second.read(0, second.nbytes), held)


@pytest.mark.parametrize("name", ["k_cache.0", "conv.0", "ssm.0"])
def test_states_that_nobody_chose_a_dtype_for(target, name) -> None:
    """They are asked about as float32; the answer is a dtype, and always the same."""
    from umbel.gguf.types import F32, DType
    from umbel.graph import Role, Tensor

    state = Tensor((66, 64), F32, Role.STATE, name)
    first, second = (target.buffer_type.accepts(state) for _ in range(2))
    assert isinstance(first, DType)
    assert first is second
