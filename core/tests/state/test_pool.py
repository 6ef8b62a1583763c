"""Numbered places with reference counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.errors import ContextFullError
from umbel.state.cache import Pool


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2),
    st.sampled_from([0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=25),
)
def test_against_a_list(first, block, steps):
    """What is handed out is free, is counted, and comes back when its last user drops it."""
    pool = Pool(20, first, "places", block=block)
    users = dict.fromkeys(range(20), 0)
    taken = []
    for n, more in steps:
        free = [p for p in range(first, 20) if not users[p]]
        assert len(free) == pool.free
        if not more and taken:
            for place in taken.pop(n % len(taken)):
                users[place] -= 1
                pool.drop(np.array([place]))
        elif n > len(free):
            with pytest.raises(ContextFullError, match="places"):
                pool.take(n)
        else:
            after = int(taken[-1][-1]) if taken and len(taken[-1]) else 0
            places = pool.take(n, after)
            assert set(places.tolist()) <= set(free)
            assert len(set(places.tolist())) == n
            assert block > 1 or sorted(places.tolist()) == places.tolist()
            assert (n, np.int32) == (len(places), places.dtype)
            if after and all(p in free for p in range(after + 1, after + 1 + n)):
                assert places.tolist() == list(range(after + 1, after + 1 + n))
            taken.append(places)
            for place in places:
                users[place] += 1
            if n % 2:
                pool.keep(places)
                taken.append(places)
                for place in places:
                    users[place] += 1
    for place, count in users.items():
        assert count + (place < first) == pool.references[place]
        assert (count > 1) == pool.shared(np.array([place]))


def test_texts_get_room_to_grow():
    """Two that are decoded in turns keep their places side by side."""
    pool = Pool(100, 1, "cells")
    one, two = [pool.take(5)], []
    two.append(pool.take(5))
    for _ in range(20):
        one.append(pool.take(1, int(one[-1][-1])))
        two.append(pool.take(1, int(two[-1][-1])))
    for parts in (one, two):
        places = np.concatenate(parts)
        assert set(np.diff(places)) == {1}


def test_blocks():
    """Texts that are written in turns get whole blocks, the first ones that are free; what is
    cut is free again for whoever wrote it. When none is whole, any place will do."""
    pool, ends, texts = Pool(50, 1, "cells", block=8), [0, 0], [[], []]
    for n in (3, 5, 1, 8, 2):
        for i, end in enumerate(ends):
            texts[i] += pool.take(n, end).tolist()
            ends[i] = texts[i][-1]
    assert texts[0] == [*range(8, 16), *range(24, 32), *range(40, 43)]
    assert texts[1] == [*range(16, 24), *range(32, 40), 1, 2, 3]
    pool.drop(np.array(texts[0][12:]))
    assert pool.take(3, texts[0][11]).tolist() == texts[0][12:15]
    pool.drop(np.array(texts[1]))
    assert pool.take(9).tolist() == [*range(16, 24), 32]
    fork = pool.take(2, texts[0][3])  # what follows is another's: it leaves him the rest
    assert fork.tolist() == [40, 41]


def test_in_front():
    """Whoever comes and goes, the places in use stay in front."""
    pool, texts = Pool(1000, 1, "cells", block=1), []
    for turn in range(60):
        if len(texts) == 4:
            pool.drop(np.concatenate(texts.pop(turn % 4)))
        texts.append([pool.take(1 + turn % 7)])
        for text in texts:
            text.append(pool.take(1, int(text[-1][-1])))
        used = sum(len(part) for text in texts for part in text)
        highest = max(int(part.max()) for text in texts for part in text)
        assert highest <= used + 4 * 7 * 8  # what the longest four ever had


def test_full():
    """The error tells how many there are, and what to do."""
    pool = Pool(4, 1, "cells")
    pool.take(2)
    with pytest.raises(ContextFullError, match="no free cells") as caught:
        pool.take(2)
    assert (caught.value.expected, caught.value.got) == (2, 1)
    assert "ctx" in caught.value.do
    assert pool.take(0).tolist() == []
    assert pool.free == 1


def test_none():
    """Of what a model has not, everybody gets place 0, and none is ever missing."""
    pool = Pool(0, 2, "slots")
    for n in (0, 1, 1000):
        places = pool.take(n, 7)
        assert ([0] * n, np.int32) == (places.tolist(), places.dtype)
        pool.keep(places)
        pool.drop([0, 1])
    assert not pool
    assert pool.free > 1 << 40


def test_reserved_places_are_not_counted():
    """Who has one of them can keep and drop it as any other, and it stays reserved."""
    pool = Pool(4, 2, "slots")
    (place,) = pool.take(1).tolist()
    pool.keep([1, place, place])
    assert pool.references.tolist() == [1, 1, 3, 0]
    for places in (1, 0, [1, place], [place, place]):
        pool.drop(places)
    assert pool.references.tolist() == [1, 1, 0, 0]
