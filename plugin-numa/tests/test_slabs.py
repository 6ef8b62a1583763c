"""Memory that many tensors share."""

import weakref

import numpy as np
from umbel_numa.pages import Binder, page_size
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


def test_no_page_of_a_node_belongs_to_two_pieces() -> None:
    slabs = Slabs(Binder())
    pieces = [slabs.take(n, "weight", 0) for n in (1, page_size(), page_size() + 1, 5)]
    assert all(piece.ctypes.data % page_size() == 0 for piece in pieces)
    starts = [(piece.ctypes.data - pieces[0].ctypes.data) // page_size() for piece in pieces]
    assert starts == [0, 1, 2, 4]


def test_a_slab_lives_as_long_as_one_of_its_pieces() -> None:
    slabs = Slabs(Binder())
    pieces = [slabs.take(100, "weight") for _ in range(3)]
    slab = weakref.ref(pieces[0].base)
    del pieces[:2]
    assert slab() is not None
    assert slabs.take(100, "weight").base is slab()
    pieces.clear()
    assert slab() is None
    assert np.all(slabs.take(100, "weight") == 0)
