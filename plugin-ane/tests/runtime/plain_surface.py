"""A surface without a driver, for tests of what fills it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


class Plain:
    """Memory that insists on being locked."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.full(nbytes, 0x3C, np.uint8)
        self.locked = self.released = False
        self.locks = 0

    @property
    def nbytes(self) -> int:
        return self.memory.size

    @contextmanager
    def lock(self, *, read_only: bool = False) -> Iterator[np.ndarray]:
        assert (self.locked, self.released) == (False, False)
        self.locked, self.locks = True, self.locks + 1
        try:
            yield self.memory
        finally:
            self.locked = False

    def release(self) -> None:
        self.released = True

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """As a program reads them: float16, packed from byte 0."""
        return np.ndarray(shape, np.float16, self.memory).copy()
