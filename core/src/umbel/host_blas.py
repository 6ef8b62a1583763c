"""How many threads NumPy's BLAS uses, where that BLAS is an OpenBLAS that can be asked."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

# OpenBLAS as the NumPy wheels carry it (prefixed, 64-bit integers), and as distributions do
_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def cpus() -> int:
    """The processors that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def set_threads(n: int | None) -> bool:
    """Sets the thread count for the whole process, None as it was at first; False where this
    BLAS cannot be asked."""
    setter, first = _function("set_num_threads"), _first()
    if setter is not None:
        setter(n or first)
    return setter is not None


def threads() -> int:
    """The thread count in use; where this BLAS cannot be asked, one for each processor."""
    getter = _function("get_num_threads")
    return cpus() if getter is None else int(getter())


_first = functools.cache(threads)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """From NumPy's own libraries (opened again they are the same), or from the process."""
    package = Path(np.__file__).parent
    own = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    for path in [*map(str, own), None]:
        with contextlib.suppress(OSError, TypeError):
            library = ctypes.CDLL(path)
            for function in (getattr(library, n.format(name), None) for n in _NAMES):
                if function is not None:
                    return function  # type: ignore[no-any-return]
    return None
