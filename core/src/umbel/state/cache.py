"""Sequences and the places that hold their state, behind one interface for all kinds of model.

A step reads old places and writes new ones; they become the sequence's own only when the step
has succeeded. So a failed or cancelled step changes nothing, and a fork costs a reference
count.
"""

import sys
from collections import Counter
from collections.abc import Callable
from weakref import WeakSet

import attrs
import numpy as np
from numpy.typing import ArrayLike

from umbel.errors import ContextFullError

NONE = np.empty(0, np.int32)
ZERO_SLOT = 1  # the recurrent state before the first token; slot 0 is scratch
SNAPSHOTS = 4  # recurrent states a sequence keeps to be rewound to


Mix = tuple[tuple[str, float], ...]  # the adapters of a sequence: digest, scale; none is ()


@attrs.define(eq=False)
class Sequence:
    """The tokens whose state is known; the position of a token is its index."""

    tokens: list[int] = attrs.field(factory=list)
    cells: np.ndarray = NONE  # one a token, where there is a KV cache; replaced, never changed
    slot: int = ZERO_SLOT
    snapshots: list[tuple[int, int]] = attrs.field(factory=list)  # (number of tokens, slot)
    shifts: int = 0  # how often the context was shifted
    adapters: Mix = ()  # with which all of the state was computed

    def __len__(self) -> int:
        return len(self.tokens)


@attrs.frozen
class Taken:
    """Places that a step will write."""

    cells: np.ndarray
    slot: int


class Pool:
    """Numbered places with reference counts: cells of a KV cache, slots of recurrent state.

    It hands out `first` to `n - 1`; the ones before are reserved, and never counted.

    What a place holds is never changed while it is taken, so that sequences can share it: a
    place is free again when the last of its users has dropped it. With `n` 0 the model has
    nothing of the kind: everybody gets the reserved place 0, which nobody reads. With `block`
    places are handed out from the front, in blocks of so many for each user while there are.
    """

    def __init__(self, n: int, first: int, what: str, *, block: int = 0) -> None:
        self.what = what
        self.first = first
        self.block = block
        self.references = np.zeros(n, np.int32)
        self.references[:first] = 1
        self._free = max(n - first, 0) if n else sys.maxsize  # counted, as each step asks

    def __len__(self) -> int:
        return len(self.references)

    @property
    def free(self) -> int:
        return self._free

    def take(self, n: int, after: int = 0) -> np.ndarray:
        """`n` free places (int32), side by side where possible: best just past `after`.

        Raises `ContextFullError` when there are not so many.
        """
        if not self:
            return np.zeros(n, np.int32)
        if self.free < n:
            msg = f"there are no free {self.what} left"
            do = "close sessions, or load the model with a larger ctx or parallel"
            raise ContextFullError(msg, expected=n, got=self.free, do=do)
        beside = slice(after + 1, after + 1 + n)
        if after and after + n < len(self) and not np.count_nonzero(self.references[beside]):
            places = np.arange(after + 1, after + 1 + n, dtype=np.int32)
            self.references[beside] = 1
        else:
            places = self._fresh(n, after)
            self.references[places] = 1
        self._free -= n
        return places

    def _fresh(self, n: int, after: int) -> np.ndarray:
        """From the longest free stretch; from its middle, if what stands before may grow. In
        blocks: what follows in the one that it has begun, whole ones, then whatever is left."""
        free = np.flatnonzero(self.references == 0).astype(np.int32)
        if self.block:
            blocks = free // self.block
            whole = np.bincount(blocks)[blocks] == self.block
            last = after or len(self)
            begun = (free - np.cumsum(free > last) == last) & (blocks == last // self.block)
            return free[np.argsort(np.where(begun, 0, 2 - whole), kind="stable")][:n]
        longest = max(np.split(free, np.flatnonzero(np.diff(free) != 1) + 1), key=len)
        if len(longest) < n:
            return free[:n]
        half = len(longest) // 2
        grows = 0 < n <= len(longest) - half and longest[0] > self.first
        return longest[half:][:n] if grows else longest[:n]

    def keep(self, places: ArrayLike) -> None:
        """One more user of each place, as often as it is named."""
        self._count(places, 1)

    def drop(self, places: ArrayLike) -> None:
        """One user fewer."""
        self._count(places, -1)

    def _count(self, places: ArrayLike, users: int) -> None:
        if self:
            counted = np.asarray(places, np.int32)
            np.add.at(self.references, counted[counted >= self.first], users)
            self._free = int(np.count_nonzero(self.references == 0))

    def shared(self, places: np.ndarray) -> bool:
        return bool((self.references[places] > 1).any())


class Cache:
    """Hands out places to sequences: so many cells and slots, 0 where the model has none; cells
    in blocks where their memory grows by those."""

    def __init__(self, cells: int, slots: int, *, block: int = 0) -> None:
        self.cells = Pool(cells, 1, "cells in the KV cache", block=block)
        self.slots = Pool(slots, ZERO_SLOT + 1, "recurrent states")
        # gives back places that nobody needs; False: there are none
        self.reclaim: Callable[[], bool] = lambda: False
        self._ages: dict[int, int] = {}  # of the slots that are snapshots; the oldest is least
        self._owners: WeakSet[Sequence] = WeakSet()  # of snapshots

    # a step

    def begin(self, sequence: Sequence, n: int) -> Taken:
        """Places for `n` more tokens; `ContextFullError` when there are none.

        What is kept for others gives way. Snapshots are a luxury, too: the oldest one of any
        sequence goes when its slot is needed.
        """
        self.make_room(n, 1)
        cells = self.cells.take(n, int(sequence.cells[-1]) if len(sequence.cells) else 0)
        try:
            if not self.slots.free:
                self._drop_oldest_snapshot()
            slot = int(self.slots.take(1)[0]) if self.slots else 0
        except Exception:
            self.cells.drop(cells)
            raise
        return Taken(cells, slot)

    def commit(self, sequence: Sequence, tokens: list[int], taken: Taken) -> None:
        """The step has succeeded: what it wrote is the sequence's."""
        sequence.tokens += tokens
        sequence.cells = np.concatenate([sequence.cells, taken.cells])
        self.slots.drop(sequence.slot)
        sequence.slot = taken.slot

    def abort(self, taken: Taken) -> None:
        """The step has failed: what it wrote is nobody's."""
        self.cells.drop(taken.cells)
        self.slots.drop(taken.slot)

    @property
    def room(self) -> int:
        """How many sequences there are recurrent states for to go on."""
        return self.slots.free + (len(self._spare()) if self.slots else 0)

    def make_room(self, cells: int, sequences: int) -> bool:
        """Whether there are so many cells, and states for so many sequences to go on; what is
        kept for others goes for them."""
        while self.cells.free < cells or self.room < sequences:
            if not self.reclaim():
                return False
        return True

    # sequences

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same past, which both share."""
        self.cells.keep(sequence.cells)
        self.slots.keep([sequence.slot, *(slot for _, slot in sequence.snapshots)])
        tokens, snapshots = list(sequence.tokens), list(sequence.snapshots)
        fork = attrs.evolve(sequence, tokens=tokens, snapshots=snapshots)
        self._owners.add(fork)
        return fork

    def close(self, sequence: Sequence) -> None:
        """Gives everything back; closing twice is harmless."""
        self._forget(sequence, 0)
        self.slots.drop(sequence.slot)
        sequence.slot = ZERO_SLOT

    def snapshot(self, sequence: Sequence) -> None:
        """Remembers the recurrent state of now; the oldest memory goes when there are many."""
        here, slot = len(sequence), sequence.slot
        if slot <= ZERO_SLOT or any(n == here for n, _ in sequence.snapshots):
            return
        self.slots.keep(slot)
        self._ages[slot] = 1 + max(self._ages.values(), default=0)
        self._owners.add(sequence)
        self.remember(sequence, [*sequence.snapshots, (here, slot)][-SNAPSHOTS:])

    def rewind(self, sequence: Sequence, n: int) -> int:
        """Forgets the tokens from `n` on, and more where there is no state; says what is left.

        A recurrent state goes back to a snapshot, or to nothing: the caller prefills the rest.
        """
        n = max(0, min(n, len(sequence)))
        if n == len(sequence):
            return n
        if sequence.slot > ZERO_SLOT:
            kept = [s for s in sequence.snapshots if s[0] <= n]
            self.slots.drop(sequence.slot)
            n, sequence.slot = kept[-1] if kept else (0, ZERO_SLOT)
            self.slots.keep(sequence.slot)
        self._forget(sequence, n)
        return n

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
        self.cells.drop(sequence.cells[start:stop])
        sequence.cells = np.concatenate([sequence.cells[:start], sequence.cells[stop:]])
        del sequence.tokens[start:stop]

    def _forget(self, sequence: Sequence, n: int) -> None:
        """Drops what belongs to the tokens from `n` on, but the current recurrent state."""
        self.remember(sequence, [s for s in sequence.snapshots if s[0] <= n])
        self.drop_span(sequence, n, len(sequence))

    def remember(self, sequence: Sequence, snapshots: list[tuple[int, int]]) -> None:
        """These are its snapshots from now on; others that it had are dropped."""
        self.slots.drop([slot for n, slot in sequence.snapshots if (n, slot) not in snapshots])
        sequence.snapshots = snapshots

    def _spare(self) -> list[int]:
        """The slots of snapshots that are nobody's current state, the oldest first."""
        users = Counter(slot for owner in self._owners for _, slot in owner.snapshots)
        only = [slot for slot, n in users.items() if self.slots.references[slot] == n]
        return sorted(only, key=self._ages.__getitem__)

    def _drop_oldest_snapshot(self) -> None:
        for oldest in self._spare()[:1]:
            for owner in self._owners:
                self.remember(owner, [s for s in owner.snapshots if s[1] != oldest])
