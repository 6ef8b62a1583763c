"""Sequences against a model of plain lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from umbel.errors import ContextFullError
from umbel.state import Cache, Sequence
from umbel.state.cache import SNAPSHOTS, ZERO_SLOT

CELLS, SLOTS = 40, 5
_tokens = itertools.count(1)


class Plain:
    """What a sequence is: its history, and at which lengths its state was remembered."""

    def __init__(self, history=(), snapshots=()):
        self.history, self.snapshots = list(history), list(snapshots)


class Machine(RuleBasedStateMachine):
    """Every cell holds a token, every slot a history; a step writes both as a model would."""

    kv, recurrent = True, True
    live = Bundle("live")

    def __init__(self):
        super().__init__()
        self.cache = Cache(CELLS * self.kv, SLOTS * self.recurrent)
        self.in_cell, self.in_slot = {}, {ZERO_SLOT: ()}
        self.pairs = []
        self.marks = {}
        self.before = []

    def _step(self, pair, n):
        """The places of a step, written; None when there are none."""
        sequence, plain = pair
        cells, slots = self.cache.cells, self.cache.slots
        fits = cells.free >= n and self.cache.room
        if fits and not slots.free:
            self._oldest_snapshot_goes(n)
        self.before = self._counts()  # the one snapshot that had to go is gone for good
        if not fits:
            with pytest.raises(ContextFullError):
                self.cache.begin(sequence, n)
            assert self.before == self._counts()
            return None
        taken = self.cache.begin(sequence, n)
        tokens = [next(_tokens) for _ in range(n)]
        self.in_cell.update(zip(taken.cells.tolist(), tokens, strict=self.kv))
        if self.recurrent:
            assert taken.slot > ZERO_SLOT
            assert taken.slot != sequence.slot
            self.in_slot[taken.slot] = (*plain.history, *tokens)
        return taken, tokens

    def _oldest_snapshot_goes(self, n):
        """A step that needs its place takes it, from all who share it, and no other."""
        everybody = (*self.pairs, *self.marks.values())
        before = [list(sequence.snapshots) for sequence, _ in everybody]
        self.cache.abort(self.cache.begin(Sequence(), n))
        gone = set()
        for (sequence, plain), old in zip(everybody, before, strict=True):
            gone |= set(old) - set(sequence.snapshots)
            plain.snapshots = [m for m, _ in sequence.snapshots]
        assert len({slot for _, slot in gone}) == 1

    def _counts(self):
        return [p.references.tolist() for p in (self.cache.cells, self.cache.slots)]

    @rule(target=live)
    def open(self):
        pair = (Sequence(), Plain())
        self.pairs.append(pair)
        return pair

    @rule(pair=live, n=st.integers(1, 6))
    def succeed(self, pair, n):
        step = self._step(pair, n)
        if step:
            self.cache.commit(pair[0], step[1], step[0])
            pair[1].history += step[1]

    @rule(pair=live, n=st.integers(1, 6))
    def fail(self, pair, n):
        step = self._step(pair, n)
        if step:
            self.cache.abort(step[0])
        assert self.before == self._counts()

    @rule(target=live, pair=live)
    def fork(self, pair):
        made = (self.cache.fork(pair[0]), Plain(pair[1].history, pair[1].snapshots))
        self.pairs.append(made)
        return made

    @rule(pair=consumes(live))
    def close(self, pair):
        if id(pair) in self.marks:
            self.cache.close(self.marks.pop(id(pair))[0])
        for _ in range(2):
            self.cache.close(pair[0])
        assert (pair[0].tokens, len(pair[0].cells), pair[0].slot) == ([], 0, ZERO_SLOT)
        self.pairs.remove(pair)

    @rule(pair=live)
    def snapshot(self, pair):
        self.cache.snapshot(pair[0])
        _sequence, plain = pair
        n = len(plain.history)
        if self.recurrent and n and n not in plain.snapshots:
            plain.snapshots = [*plain.snapshots, n][-SNAPSHOTS:]

    @rule(pair=live, n=st.integers(-2, 30))
    def rewind(self, pair, n):
        if id(pair) in self.marks:
            return
        plain = pair[1]
        left = max(0, min(n, len(plain.history)))
        if self.recurrent and left < len(plain.history):
            left = max([0, *(s for s in plain.snapshots if s <= left)])
        plain.snapshots = [s for s in plain.snapshots if s <= left]
        assert left == self.cache.rewind(pair[0], n)
        del plain.history[left:]

    @rule(pair=live)
    def mark(self, pair):
        if id(pair) not in self.marks:
            before = Plain(pair[1].history, pair[1].snapshots)
            self.marks[id(pair)] = self.cache.fork(pair[0]), before

    @rule(pair=live)
    def restore(self, pair):
        if id(pair) in self.marks:
            fork, before = self.marks.pop(id(pair))
            self.cache.restore(pair[0], fork)
            pair[1].history, pair[1].snapshots = before.history, before.snapshots

    @rule(pair=live)
    def release(self, pair):
        if id(pair) in self.marks:
            self.cache.close(self.marks.pop(id(pair))[0])

    @rule(pair=live, start=st.integers(0, 9), n=st.integers(1, 9))
    def drop_span(self, pair, start, n):
        if self.recurrent or id(pair) in self.marks:
            return
        self.cache.drop_span(pair[0], start, start + n)
        del pair[1].history[start : start + n]

    @invariant()
    def same(self):
        """Tokens, cells and slots hold what the plain model says; nothing leaks."""
        cells, slots = [0] * CELLS, [0] * SLOTS
        cells[0], slots[0], slots[1] = 1, 1, 1
        for sequence, plain in (*self.pairs, *self.marks.values()):
            assert plain.history == sequence.tokens
            assert len(plain.history) == len(sequence)
            if self.kv:
                assert plain.history == [self.in_cell[c] for c in sequence.cells.tolist()]
                for cell in sequence.cells.tolist():
                    cells[cell] += 1
            if self.recurrent:
                assert tuple(plain.history) == self.in_slot[sequence.slot]
                kept = {n: self.in_slot[slot] for n, slot in sequence.snapshots}
                assert {n: tuple(plain.history[:n]) for n in plain.snapshots} == kept
                for slot in (sequence.slot, *(s for _, s in sequence.snapshots)):
                    slots[slot] += slot > ZERO_SLOT
            assert self.recurrent or not sequence.snapshots
        expected = [cells * self.kv, slots * self.recurrent]
        assert expected == self._counts()


class OnlyCells(Machine):
    kv, recurrent = True, False


class OnlySlots(Machine):
    kv, recurrent = False, True


how = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBoth = Machine.TestCase
TestOnlyCells = OnlyCells.TestCase
TestOnlySlots = OnlySlots.TestCase
TestBoth.settings = TestOnlyCells.settings = TestOnlySlots.settings = how


def test_a_snapshot_of_what_was_undone_is_gone():
    """A state that was remembered between a mark and its restoration is not that of what comes
    after."""
    cache = Cache(0, 10)
    sequence = Sequence()
    before = cache.fork(sequence)
    cache.commit(sequence, [1, 2], cache.begin(sequence, 2))
    cache.snapshot(sequence)
    cache.restore(sequence, before)
    cache.commit(sequence, [7, 8, 9], cache.begin(sequence, 3))
    assert cache.rewind(sequence, 2) == 0
    assert cache.slots.free == 8


def test_snapshots_are_few():
    """The oldest go, so that slots do not run out."""
    cache = Cache(0, 20)
    sequence = Sequence()
    for i in range(10):
        cache.commit(sequence, [i], cache.begin(sequence, 1))
        cache.snapshot(sequence)
        cache.snapshot(sequence)
    assert [n for n, _ in sequence.snapshots] == [7, 8, 9, 10]
    assert cache.slots.free == 18 - SNAPSHOTS


def test_snapshots_give_way():
    """Live states come first: the oldest snapshots go, whosever they are, and no live state."""
    cache = Cache(0, 2 + 5)
    one, two, three = sequences = [Sequence() for _ in range(3)]
    for i, sequence in enumerate((one, two)):
        for _ in range(2):
            cache.commit(sequence, [i], cache.begin(sequence, 1))
            cache.snapshot(sequence)
    fork = cache.fork(one)
    assert (1, 3) == (cache.slots.free, cache.room)
    for sequence in (three, one, fork):
        cache.commit(sequence, [7], cache.begin(sequence, 1))
    assert [[2]] * 3 == [[n for n, _ in s.snapshots] for s in (one, two, fork)]
    assert (0, 1) == (cache.slots.free, cache.room)
    taken = cache.begin(three, 1)
    assert [[], [2], []] == [[n for n, _ in s.snapshots] for s in (one, two, fork)]
    with pytest.raises(ContextFullError):
        cache.begin(three, 1)
    cache.abort(taken)
    for sequence in (*sequences, fork):
        cache.close(sequence)
    assert cache.slots.free == 5


def test_a_restored_sequence_owns_its_snapshots():
    """A snapshot that gives way after a restoration is given back once."""
    cache = Cache(0, 2 + 3)
    sequence = Sequence()
    cache.commit(sequence, [1], cache.begin(sequence, 1))
    cache.snapshot(sequence)
    before = cache.fork(sequence)
    cache.commit(sequence, [2], cache.begin(sequence, 1))
    cache.restore(sequence, before)
    cache.commit(sequence, [3], cache.begin(sequence, 1))
    taken = [cache.begin(Sequence(), 1) for _ in range(2)]
    assert sequence.snapshots == []
    for each in taken:
        cache.abort(each)
    cache.close(sequence)
    assert cache.slots.free == 3


def test_forks_of_a_recurrent_model(load, ids):
    """Forks that are fed in turn, and remembered each time, work as long as they fit."""
    runner = load("mamba", parallel=1)
    given, sequence = ids("mamba"), Sequence()
    runner.forward(sequence, given[:4])
    everybody = [sequence, *(runner.cache.fork(sequence) for _ in range(3))]
    for i in range(4, 10):
        logits = []
        for each in everybody:
            logits.append(runner.forward(each, given[i : i + 1]).tolist())
            runner.cache.snapshot(each)
        assert [logits[0]] * 4 == logits
