"""Memory that many tensors share; and where it is bound."""

import logging
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME
from umbel.graph import Role, Tensor
from umbel_numa import pages
from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory
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


def binding(bound: list[tuple[int, int]] | None = None) -> Callable[[], object]:
    """The library on a system that binds to any node; it notes nodes and bytes."""
    real, noted = pages.library(), [] if bound is None else bound

    class Binding:
        def un_pages_bind(self, _: int, nbytes: int, number: int) -> int:
            noted.append((number, nbytes))
            return 0

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    return Binding


def test_a_node_that_is_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though others have memory: what is bound to it would end the process. It is told once
    for as long as something lies elsewhere, and what fits is bound."""
    room, bound = {0: 1 << 40, 1: (3 << 20) + pages._KEPT, 2: 0}, list[tuple[int, int]]()
    monkeypatch.setattr(pages, "library", binding(bound))
    monkeypatch.setattr(pages, "available", room.get)
    binder = Binder()
    slabs, kept = Slabs(binder), list[np.ndarray]()
    with caplog.at_level(logging.WARNING, "umbel"):
        for number in (0, 1, 2):  # 2 does not tell
            kept.append(slabs.take(SLAB, "weight", number))
            kept.append(binder.fresh(2 << 20, "weight", number))
            kept.append(slabs.take(100, "weight", number))
    assert [memory.nbytes for memory in kept] == [SLAB, 2 << 20, 100] * 3
    assert bound == [
        *[(0, SLAB), (0, 2 << 20), (0, SLAB)],
        (1, 2 << 20),
        *[(2, SLAB), (2, 2 << 20), (2, SLAB)],
    ]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("node 1 is full: ")
    assert binder.full == [1]

    kept.clear()
    assert binder.full == []
    kept.append(binder.fresh(2 << 20, "weight", 1))
    assert (binder.full, len(caplog.records)) == ([], 1)
    kept.append(binder.fresh(SLAB, "weight", 1))
    assert (binder.full, len(caplog.records)) == ([1], 2)


def test_what_is_bound_and_not_yet_touched_is_not_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Caches of long contexts, on a node of which the system says all the time that it has room
    for three."""
    each = 8 << 20
    monkeypatch.setattr(pages, "available", lambda _: 3 * each + pages._KEPT)
    monkeypatch.setattr(pages, "library", binding())
    binder = Binder()
    caches = [binder.fresh(each, "state", 0) for _ in range(3)]
    assert binder.full == []
    caches.append(binder.fresh(each, "state", 0))
    assert binder.full == [0]

    caches[2:] = []  # given back
    caches.append(binder.fresh(each, "state", 0))
    assert binder.full == []
    caches[0][:] = 1  # now it is the system that counts it
    caches.append(binder.fresh(each, "state", 0))
    assert binder.full == []


@pytest.mark.parametrize("usage", ["state", "compute"])
def test_weights_leave_room_for_what_is_not_yet_touched(
    monkeypatch: pytest.MonkeyPatch, usage: str
) -> None:
    monkeypatch.setattr(pages, "machine_memory", lambda: (1 << 30, 40 << 20))
    engine = Engine(1)
    memory, raw = NativeMemory(engine, {"w"}), np.zeros((1 << 13, 34 * 32), np.uint8)
    weight = Tensor((1 << 13, 1024), BY_NAME["q8_0"], Role.WEIGHT, "w")  # 8.5 MiB
    buffer = memory.allocate(36 << 20, usage)
    assert memory.store(weight, raw).packed() == 0
    del buffer
    assert memory.store(weight, raw).packed() != 0
    engine.close()
