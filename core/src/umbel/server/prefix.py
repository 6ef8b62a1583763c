"""What answers leave behind for others: sequences whose beginnings they go on from.

Cells are shared and never copied, so that all that begins alike, with one system prompt say,
is a tree of cells. What is kept is a luxury: what was used longest ago goes when its places
are needed.
"""

from collections.abc import Iterable

import attrs
import numpy as np

from umbel.state import Cache, Sequence
from umbel.state.cache import ZERO_SLOT

MOST = 64  # sequences that are kept: a new prompt is compared with each
LEAST = 16  # tokens in common that are worth it


@attrs.define(eq=False)
class Prefixes:
    """Those of one cache."""

    cache: Cache
    _kept: list[Sequence] = attrs.field(factory=list)  # what was used last is at the end

    def __attrs_post_init__(self) -> None:
        self.cache.reclaim = self.drop_oldest

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def cells(self) -> int:
        """How many cells only these sequences have."""
        if not self._kept or not self.cache.cells:
            return 0
        held = np.concatenate([kept.cells for kept in self._kept])
        users = np.bincount(held, minlength=len(self.cache.cells))
        return int(np.count_nonzero((users > 0) & (users == self.cache.cells.references)))

    def adopt(self, sequence: Sequence, ids: list[int], others: Iterable[Sequence]) -> int:
        """Gives an empty sequence the longest beginning of `ids` that is computed already, here
        or by others; says how long it is. The last id is left: its logits are wanted."""
        wanted = np.array(ids[:-1], np.int64)
        known = [s for s in (*self._kept, *others) if _fits(s, sequence, ids)]
        reach, best = 0, sequence
        for other in known:
            n = _reach(other, _common(wanted, other.tokens))
            if n > reach:
                reach, best = n, other
        if reach < LEAST:
            return 0
        if best in self._kept:
            self._kept.append(self._kept.pop(self._kept.index(best)))
        fork = self.cache.fork(best)
        self.cache.rewind(fork, reach)
        self.cache.restore(sequence, fork)
        return reach

    def known(self, ids: list[int]) -> int:
        """About how much of `ids` is kept here; from any thread, without adapters."""
        wanted = np.array(ids[:-1], np.int64)
        alike = [s for s in tuple(self._kept) if s.tokens[:LEAST] == ids[:LEAST]]
        return max((_common(wanted, s.tokens) for s in alike), default=0)

    def keep(self, sequence: Sequence) -> None:
        """Keeps a fork of a sequence; what knows of dropped tokens is no beginning."""
        if sequence.shifts or len(sequence) < LEAST:
            return
        if sequence.slot <= ZERO_SLOT:  # else what it had on the way may be wanted
            for kept in [k for k in self._kept if _begins(sequence, k)]:
                self._drop(kept)
        self._kept.append(self.cache.fork(sequence))
        if len(self._kept) > MOST:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Gives places back; False: there are none left to give."""
        if self._kept:
            self._drop(self._kept[0])
            return True
        return False

    def _drop(self, kept: Sequence) -> None:
        self._kept = [k for k in self._kept if k is not kept]
        self.cache.close(kept)


def _fits(other: Sequence, sequence: Sequence, ids: list[int]) -> bool:
    """Whether it may have something in common: a look at its first tokens."""
    alike = other.adapters == sequence.adapters and not other.shifts
    return alike and len(other) >= LEAST and other.tokens[:LEAST] == ids[:LEAST]


def _common(wanted: np.ndarray, tokens: list[int]) -> int:
    n = min(len(wanted), len(tokens))
    differ = np.flatnonzero(wanted[:n] != np.array(tokens[:n], np.int64))
    return int(differ[0]) if len(differ) else n


def _reach(other: Sequence, n: int) -> int:
    """How much of the `n` first tokens can be had: a recurrent state is known at some only."""
    if other.slot <= ZERO_SLOT or n == len(other):
        return n
    return max((at for at, _ in other.snapshots if at <= n), default=0)


def _begins(sequence: Sequence, kept: Sequence) -> bool:
    alike = kept.adapters == sequence.adapters
    return alike and sequence.tokens[: len(kept)] == kept.tokens
