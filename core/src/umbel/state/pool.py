"""Numbered places (cells of a KV cache, slots of recurrent state) with reference counts."""

from __future__ import annotations

import numpy as np

from umbel.errors import ContextFullError


class Pool:
    """Places `first` to `n - 1`; the ones before are reserved and never handed out.

    What a place holds is never changed while it is taken, so that sequences can share it: a
    place is free again when the last of its users has dropped it.
    """

    def __init__(self, n: int, first: int, what: str) -> None:
        self.what = what
        self.first = first
        self.references = np.zeros(n, np.int32)
        self.references[:first] = 1

    @property
    def free(self) -> int:
        return int(np.count_nonzero(self.references == 0))

    def take(self, n: int, after: int = 0) -> np.ndarray:
        """`n` free places (int32, rising), side by side where possible: best just past `after`.

        Raises `ContextFullError` when there are not so many.
        """
        if self.free < n:
            msg = f"there are no free {self.what} left"
            do = "close sessions, or load the model with a larger ctx or parallel"
            raise ContextFullError(msg, expected=n, got=self.free, do=do)
        places = np.arange(after + 1, after + 1 + n, dtype=np.int32)
        fits = after and after + n < len(self.references) and not self.references[places].any()
        if not fits:
            places = self._fresh(n)
        self.references[places] = 1
        return places

    def _fresh(self, n: int) -> np.ndarray:
        """From the longest free stretch; from its middle, if what stands before may grow."""
        free = np.flatnonzero(self.references == 0).astype(np.int32)
        longest = max(np.split(free, np.flatnonzero(np.diff(free) != 1) + 1), key=len)
        if len(longest) < n:
            return free[:n]
        half = len(longest) // 2
        grows = 0 < n <= len(longest) - half and longest[0] > self.first
        return longest[half:][:n] if grows else longest[:n]

    def keep(self, places: np.ndarray) -> None:
        """One more user."""
        self.references[places] += 1

    def drop(self, places: np.ndarray) -> None:
        """One user fewer."""
        self.references[places] -= 1

    def shared(self, places: np.ndarray) -> bool:
        return bool((self.references[places] > 1).any())
