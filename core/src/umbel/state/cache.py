"""Sequences and the places that hold their state, behind one interface for all kinds of model.

A step reads old places and writes new ones; they become the sequence's own only when the step
has succeeded. So a failed or cancelled step changes nothing, and a fork costs a reference
count.
"""

from __future__ import annotations

import itertools
from collections import Counter
from weakref import WeakSet

import attrs
import numpy as np

from umbel.state.pool import Pool

NONE = np.empty(0, np.int32)
ZERO_SLOT = 1  # the recurrent state before the first token; slot 0 is scratch
SNAPSHOTS = 4  # recurrent states a sequence keeps to be rewound to


@attrs.define(eq=False)
class Sequence:
    """The tokens whose state is known; the position of a token is its index."""

    tokens: list[int] = attrs.field(factory=list)
    cells: np.ndarray = NONE  # one a token, where there is a KV cache; replaced, never changed
    slot: int = ZERO_SLOT
    snapshots: list[tuple[int, int]] = attrs.field(factory=list)  # (number of tokens, slot)
    shifts: int = 0  # how often the context was shifted

    def __len__(self) -> int:
        return len(self.tokens)


@attrs.frozen
class Taken:
    """Places that a step will write."""

    cells: np.ndarray
    slot: int


class Cache:
    """Hands out places to sequences; `cells` or `slots` is None where the model has none."""

    def __init__(self, cells: Pool | None, slots: Pool | None) -> None:
        self.cells = cells
        self.slots = slots
        self._clock = itertools.count()
        self._ages: dict[int, int] = {}  # of the slots that are snapshots
        self._owners: WeakSet[Sequence] = WeakSet()  # of snapshots

    # a step

    def begin(self, sequence: Sequence, n: int) -> Taken:
        """Places for `n` more tokens; `ContextFullError` when there are none.

        Snapshots are a luxury: the oldest one of any sequence goes when its slot is needed.
        """
        cells = NONE
        if self.cells is not None:
            after = int(sequence.cells[-1]) if len(sequence.cells) else 0
            cells = self.cells.take(n, after)
        try:
            if self.slots is not None and not self.slots.free:
                self._drop_oldest_snapshot()
            slot = int(self.slots.take(1)[0]) if self.slots is not None else ZERO_SLOT
        except Exception:
            self._drop_cells(cells)
            raise
        return Taken(cells, slot)

    def commit(self, sequence: Sequence, tokens: list[int], taken: Taken) -> None:
        """The step has succeeded: what it wrote is the sequence's."""
        sequence.tokens += tokens
        sequence.cells = np.concatenate([sequence.cells, taken.cells])
        self._drop_slot(sequence.slot)
        sequence.slot = taken.slot

    def abort(self, taken: Taken) -> None:
        """The step has failed: what it wrote is nobody's."""
        self._drop_cells(taken.cells)
        self._drop_slot(taken.slot)

    @property
    def room(self) -> int:
        """How many sequences there are places for to take one token more."""
        cells = self.cells.free if self.cells is not None else None
        slots = self.slots.free + len(self._spare()) if self.slots is not None else None
        return min(n for n in (cells, slots) if n is not None)

    # sequences

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same past, which both share."""
        if self.cells is not None:
            self.cells.keep(sequence.cells)
        for slot in (sequence.slot, *(s for _, s in sequence.snapshots)):
            self._keep_slot(slot)
        tokens, snapshots = list(sequence.tokens), list(sequence.snapshots)
        fork = attrs.evolve(sequence, tokens=tokens, snapshots=snapshots)
        self._owners.add(fork)
        return fork

    def close(self, sequence: Sequence) -> None:
        """Gives everything back; closing twice is harmless."""
        self._forget(sequence, 0)
        self._drop_slot(sequence.slot)
        sequence.slot = ZERO_SLOT

    def snapshot(self, sequence: Sequence) -> None:
        """Remembers the recurrent state of now; the oldest memory goes when there are many."""
        here = len(sequence)
        if self.slots is None or not here or any(n == here for n, _ in sequence.snapshots):
            return
        self._keep_slot(sequence.slot)
        sequence.snapshots.append((here, sequence.slot))
        self._ages[sequence.slot] = next(self._clock)
        self._owners.add(sequence)
        if len(sequence.snapshots) > SNAPSHOTS:
            self._drop_slot(sequence.snapshots.pop(0)[1])

    def rewind(self, sequence: Sequence, n: int) -> int:
        """Forgets the tokens from `n` on, and more where there is no state; says what is left.

        A recurrent state goes back to a snapshot, or to nothing: the caller prefills the rest.
        """
        n = max(0, min(n, len(sequence)))
        if n == len(sequence):
            return n
        if self.slots is not None:
            kept = [s for s in sequence.snapshots if s[0] <= n]
            self._drop_slot(sequence.slot)
            n, sequence.slot = kept[-1] if kept else (0, ZERO_SLOT)
            self._keep_slot(sequence.slot)
        self._forget(sequence, n)
        return n

    def _forget(self, sequence: Sequence, n: int) -> None:
        """Drops what belongs to the tokens from `n` on, but the current recurrent state."""
        for _, slot in [s for s in sequence.snapshots if s[0] > n]:
            self._drop_slot(slot)
        sequence.snapshots = [s for s in sequence.snapshots if s[0] <= n]
        self._drop_cells(sequence.cells[n:])
        sequence.cells = sequence.cells[:n].copy()
        del sequence.tokens[n:]

    def restore(self, sequence: Sequence, before: Sequence) -> None:
        """Makes the sequence what it was when it was forked; the fork is spent."""
        self.close(sequence)
        for name, value in attrs.asdict(before, recurse=False).items():
            setattr(sequence, name, value)
        self._owners.add(sequence)
        before.snapshots = []

    def drop_span(self, sequence: Sequence, start: int, stop: int) -> None:
        """Forgets the tokens of a span in the middle, where there is no recurrent state; the
        caller mends what follows."""
        self._drop_cells(sequence.cells[start:stop])
        sequence.cells = np.concatenate([sequence.cells[:start], sequence.cells[stop:]])
        del sequence.tokens[start:stop]

    def _spare(self) -> list[int]:
        """The slots of snapshots that are nobody's current state, the oldest first."""
        if self.slots is None:
            return []
        users = Counter(slot for owner in self._owners for _, slot in owner.snapshots)
        only = [slot for slot, n in users.items() if self.slots.references[slot] == n]
        return sorted(only, key=self._ages.__getitem__)

    def _drop_oldest_snapshot(self) -> None:
        oldest = next(iter(self._spare()), ZERO_SLOT)
        for owner in self._owners:
            kept = [s for s in owner.snapshots if s[1] != oldest]
            for _ in range(len(owner.snapshots) - len(kept)):
                self._drop_slot(oldest)
            owner.snapshots = kept

    def _drop_cells(self, cells: np.ndarray) -> None:
        if self.cells is not None and len(cells):
            self.cells.drop(cells)

    def _keep_slot(self, slot: int) -> None:
        if self.slots is not None and slot > ZERO_SLOT:
            self.slots.keep(np.array([slot]))

    def _drop_slot(self, slot: int) -> None:
        if self.slots is not None and slot > ZERO_SLOT:
            self.slots.drop(np.array([slot]))
