"""Memory that many tensors share; and where it is bound."""

import logging
import weakref

import numpy as np
import pytest
from umbel.errors import OutOfMemoryError
from umbel_numa import pages
from umbel_numa.pages import Binder, fresh, page_size
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


@pytest.mark.parametrize(("usage", "option"), [("state", "--ctx"), ("compute", "--ubatch")])
def test_what_would_make_room(usage: str, option: str) -> None:
    """What no system has is refused, with the option that asked for it."""
    with pytest.raises(OutOfMemoryError, match=f"of {usage} memory") as told:
        fresh(1 << 62, usage)
    assert option in told.value.do


def test_a_node_that_is_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though others have memory: what is bound to it would end the process. It is told once,
    and what fits is bound."""
    room, bound = {0: 1 << 40, 1: (3 << 20) + pages._KEPT, 2: 0}, list[tuple[int, int]]()
    real = pages.library()

    class Watched:
        def __getattr__(self, name: str) -> object:
            if name == "un_pages_bind":
                return lambda _, nbytes, number: bound.append((number, nbytes)) or 0
            return getattr(real, name)

    monkeypatch.setattr(pages, "library", Watched)
    monkeypatch.setattr(pages, "available", room.get)
    binder = Binder()
    slabs = Slabs(binder)
    with caplog.at_level(logging.WARNING, "umbel"):
        for number in (0, 1, 2):  # 2 does not tell
            assert slabs.take(SLAB, "weight", number).nbytes == SLAB
            assert binder.fresh(2 << 20, "weight", number).nbytes == 2 << 20
            assert slabs.take(100, "weight", number).nbytes == 100
    assert bound == [
        *[(0, SLAB), (0, 2 << 20), (0, SLAB)],
        (1, 2 << 20),
        *[(2, SLAB), (2, 2 << 20), (2, SLAB)],
    ]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("node 1 is full: ")
