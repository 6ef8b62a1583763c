"""Memory that many tensors share."""

import numpy as np
from umbel_numa.pages import Binder
from umbel_numa.slabs import SLAB, Slabs


def test_pieces_are_aligned_and_apart() -> None:
    slabs = Slabs(Binder())
    pieces = [slabs.take(n, "weight") for n in (100, 1, 0, 64, SLAB // 2 - 1, SLAB // 2 - 1, 7)]
    for value, piece in enumerate(pieces):
        piece[:] = value
    for value, piece in enumerate(pieces):
        assert piece.ctypes.data % 64 == 0
        assert np.all(piece == value)


def test_large_pieces_are_their_own() -> None:
    slabs = Slabs(Binder())
    small = slabs.take(10, "weight")
    large = slabs.take(SLAB, "weight")
    assert large.nbytes == SLAB
    assert slabs.take(10, "weight").ctypes.data == small.ctypes.data + 64
