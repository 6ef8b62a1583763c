"""Surfaces of the private API's driver: the fixture `private` asserts that none is left."""

from __future__ import annotations

import ctypes

import pytest
from ane_framework import Framework
from objc_programs import NBYTES
from umbel_ane.drivers import AneError
from umbel_ane.drivers.objc import Private


def test_a_surface_is_the_memory_itself(private: Private, framework: Framework) -> None:
    surface = private.surface(NBYTES)
    with surface.lock() as memory:
        memory[:] = 7
    with surface.lock(read_only=True) as memory:
        assert memory.sum() == 7 * NBYTES
        with pytest.raises(ValueError, match="read-only"):
            memory[0] = 1
    (made,) = framework.surfaces.values()
    assert memory.ctypes.data == ctypes.addressof(made.memory)
    with pytest.raises(RuntimeError), surface.lock():
        raise RuntimeError
    assert not any(s.locks for s in framework.surfaces.values())
    surface.release()
    surface.release()


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 40])
def test_a_surface_that_cannot_be_made(private: Private, nbytes: int) -> None:
    with pytest.raises(AneError, match="cannot be made"):
        private.surface(nbytes)


def test_a_surface_that_cannot_be_locked(private: Private, framework: Framework) -> None:
    surface = private.surface(NBYTES)
    framework.lock_status = -536870206  # kIOReturnBadArgument
    with pytest.raises(AneError, match="cannot be locked") as caught, surface.lock():
        pass
    assert caught.value.code == 0xE00002C2
    framework.lock_status = 0
    surface.release()
