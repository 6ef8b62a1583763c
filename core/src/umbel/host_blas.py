"""How many threads NumPy's BLAS uses, where that BLAS is an OpenBLAS that can be asked."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

# OpenBLAS as the NumPy wheels carry it (64-bit integers, prefixed), and as distributions build
# it
_SUFFIXES = (
    ("scipy_openblas_", "64_"),
    ("scipy_openblas_", ""),
    ("openblas_", "64_"),
    ("openblas_", ""),
)


def set_threads(n: int) -> bool:
    """Sets the thread count for the whole process; False where this BLAS cannot be asked."""
    setter = _function("set_num_threads")
    if setter is not None:
        setter(n)
    return setter is not None


def threads() -> int | None:
    """The thread count in use, or None where this BLAS cannot be asked."""
    getter = _function("get_num_threads")
    return None if getter is None else int(getter())


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    for library in _libraries():
        for prefix, suffix in _SUFFIXES:
            function = getattr(library, prefix + name + suffix, None)
            if function is not None:
                return function  # type: ignore[no-any-return]
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    """NumPy's own libraries (already loaded: opening them again gives the same ones)."""
    package = Path(np.__file__).parent
    places = (package.parent / "numpy.libs", package / ".dylibs")
    for path in sorted(p for place in places if place.is_dir() for p in place.iterdir()):
        if "openblas" in path.name:
            try:
                yield ctypes.CDLL(str(path))
            except OSError:
                continue
    if hasattr(ctypes, "pythonapi"):
        yield ctypes.CDLL(None)
