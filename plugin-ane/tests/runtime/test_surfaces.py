"""The pool of surfaces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plain_surface import Plain
from umbel.errors import OutOfMemoryError
from umbel_ane.drivers import AneError
from umbel_ane.profile import load
from umbel_ane.runtime.surfaces import Pool, size_class


class Driver(SimpleNamespace):
    left = 1 << 30

    def surface(self, nbytes: int) -> Plain:
        if nbytes > self.left:
            msg = "IOSurfaceCreate gave nothing"
            raise AneError(msg)
        self.left -= nbytes
        return Plain(nbytes)


@pytest.mark.parametrize("nbytes", [1, 49152, 49153, 100_000, 1 << 20, (1 << 20) + 1, 12345678])
def test_sizes(nbytes) -> None:
    """Never too small, whole pages, an eighth too large at most, of few kinds."""
    size = size_class(nbytes, 49152)
    assert size >= max(nbytes, 49152)
    assert size % 16384 == 0
    assert size <= max(max(nbytes, 49152) * 9 / 8 + 16384, 49152)
    assert size_class(size, 49152) == size


def test_surfaces_are_taken_again_and_zeroed() -> None:
    pool = Pool(Driver(profile=load()))
    one = pool.take(100)
    with one.lock() as memory:
        assert not memory.any()
        memory.fill(7)
    pool.give([one])
    assert (pool.taken, pool.idle) == (0, 49152)
    again = pool.take(49000)
    assert again is one
    assert not again.memory.any()
    assert (pool.made, pool.nbytes) == (1, 49152)
    assert pool.take(100) is not one


def test_what_waits_is_released_where_there_is_no_room() -> None:
    pool = Pool(Driver(profile=load(), left=150_000))
    old = pool.take(100)
    pool.give([old])

    with pytest.raises(OutOfMemoryError, match="114688"):
        pool.take(114000)
    assert old.released
    assert pool.nbytes == 0
