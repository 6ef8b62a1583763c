"""What sequences share of their beginnings, and what goes first when places are needed."""

from __future__ import annotations

import pytest
from umbel.errors import ContextFullError
from umbel.server.prefix import LEAST, MOST, Prefixes
from umbel.state import Cache, Sequence

ZERO_SLOT = 1


def _computed(cache: Cache, ids: list[int], adapters=(), at: int | None = None) -> Sequence:
    """A sequence whose tokens a step has computed, perhaps with a snapshot on the way."""
    sequence = Sequence(adapters=adapters)
    for part in (ids[:at], ids[at:]) if at else (ids,):
        cache.commit(sequence, list(part), cache.begin(sequence, len(part)))
        cache.snapshot(sequence)
    return sequence


def _left(cache: Cache, ids: list[int], **how) -> None:
    """What an answer leaves that is over."""
    sequence = _computed(cache, ids, **how)
    cache.prefixes.keep(sequence)
    cache.close(sequence)


@pytest.fixture(params=["cells", "slots", "both"])
def cache(request) -> Cache:
    cells, slots = {"cells": (401, 0), "slots": (0, 30), "both": (401, 30)}[request.param]
    made = Cache(cells, slots)
    made.prefixes = Prefixes(made)
    return made


IDS = list(range(100, 140))


@pytest.mark.parametrize("changed", [0, LEAST - 1, LEAST, 25, 39, None])
def test_what_begins_alike_is_shared(cache: Cache, changed: int | None) -> None:
    """As many tokens as are the same; recurrent state goes back to a snapshot before that."""
    _left(cache, IDS, at=20)
    wanted = [*IDS, 7]
    if changed is not None:
        wanted[changed] = 1
    sequence = Sequence()
    same = 40 if changed is None else changed
    if cache.slots:
        same = max(n for n in (0, 20, 40) if n <= same)
    expected = same if same >= LEAST else 0
    assert cache.prefixes.adopt(sequence, wanted, []) == expected
    assert sequence.tokens == wanted[:expected]
    assert len(sequence.cells) == expected


def test_the_last_token_is_computed_again(cache: Cache) -> None:
    _left(cache, IDS, at=30)
    sequence = Sequence()
    assert cache.prefixes.adopt(sequence, IDS, []) == (30 if cache.slots else 39)


def test_other_adapters_share_nothing(cache: Cache) -> None:
    _left(cache, IDS, adapters=(("a", 1.0),))
    assert not cache.prefixes.adopt(Sequence(), [*IDS, 1], [])
    assert not cache.prefixes.adopt(Sequence(adapters=(("a", 0.5),)), [*IDS, 1], [])
    assert cache.prefixes.adopt(Sequence(adapters=(("a", 1.0),)), [*IDS, 1], [])


def test_a_shifted_context_is_no_beginning(cache: Cache) -> None:
    sequence = _computed(cache, IDS)
    sequence.shifts = 1
    cache.prefixes.keep(sequence)
    assert not len(cache.prefixes)
    assert not cache.prefixes.adopt(Sequence(), [*IDS, 1], [sequence])


def test_of_those_who_run(cache: Cache) -> None:
    """And both go on by themselves."""
    running, sequence = _computed(cache, IDS), Sequence()
    assert cache.prefixes.adopt(sequence, [*IDS, 1], [running]) == 40
    cache.commit(sequence, [1], cache.begin(sequence, 1))
    cache.close(sequence)
    assert running.tokens == IDS
    cache.close(running)
    _all_is_free(cache)


def _all_is_free(cache: Cache) -> None:
    while cache.prefixes.drop_oldest():
        pass
    assert not cache.cells or cache.cells.free == 400
    assert not cache.slots or cache.slots.free == 28


def test_the_longest_is_taken(cache: Cache) -> None:
    _left(cache, IDS[:20])
    _left(cache, [*IDS[:30], 1, 2])
    _left(cache, IDS)
    sequence = Sequence()
    assert cache.prefixes.adopt(sequence, [*IDS, 9], []) == 40
    cache.close(sequence)
    _all_is_free(cache)


def test_what_is_kept_gives_way_the_oldest_first() -> None:
    cache = Cache(101, 0)
    cache.prefixes = Prefixes(cache)
    for first in (0, 1000, 2000):
        _left(cache, list(range(first, first + 30)))
    used = Sequence()
    cache.prefixes.adopt(used, [*range(30), 5], [])  # the oldest, but used last
    taken = cache.begin(Sequence(), 40)  # 10 are free: the other two have 30 each
    assert len(cache.prefixes) == 2
    cache.abort(taken)
    assert not cache.prefixes.adopt(Sequence(), [*range(1000, 1030), 5], [])
    assert cache.prefixes.adopt(Sequence(), [*range(2000, 2030), 5], []) == 30
    with pytest.raises(ContextFullError):
        cache.begin(Sequence(), 101)
    assert used.tokens == list(range(30))


def test_shared_cells_are_counted_once() -> None:
    cache = Cache(401, 0)
    cache.prefixes = Prefixes(cache)
    _left(cache, IDS)
    for last in range(5):
        sequence = Sequence()
        cache.prefixes.adopt(sequence, [*IDS[:30], last, 1], [])
        cache.commit(sequence, [last], cache.begin(sequence, 1))
        cache.prefixes.keep(sequence)
        cache.close(sequence)
    assert cache.cells.free == 400 - 40 - 5
    assert cache.prefixes.cells == 45
    held = Sequence()
    cache.prefixes.adopt(held, [*IDS, 1], [])
    assert cache.prefixes.cells == 5


def test_what_grew_replaces_its_beginning() -> None:
    cache = Cache(401, 0)
    cache.prefixes = Prefixes(cache)
    _left(cache, IDS[:20])
    _left(cache, IDS)
    assert len(cache.prefixes) == 1
    for first in range(MOST + 3):
        _left(cache, [first, *range(3)] * 4)
    assert len(cache.prefixes) <= MOST
