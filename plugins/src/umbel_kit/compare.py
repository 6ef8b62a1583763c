"""When a device's result is right: limits for the error, and rules for what is not finite.

The measure is ggml's: the squared error over the squared size of the reference (NMSE). Inputs
are rounded to the dtype that the device computes in before the reference sees them, so a limit
is about the operation alone; the limits for float32 are ggml's (tests/test-backend-ops.cpp),
those of the narrower dtypes allow for the rounding of what lies on the way.
"""

from __future__ import annotations

import math

import numpy as np

MOVES = frozenset({"concat", "cont", "set_rows", "top_k"})  # no arithmetic: nothing may change
_PRODUCTS = {"mul_mat", "mul_mat_id", "flash_attn_ext", "kv_attention"}
_FLOAT32 = dict.fromkeys(_PRODUCTS, 5e-4) | dict.fromkeys(MOVES, 0.0) | {"soft_max": 1e-6}
_NARROW = {"f16": 1e-5, "bf16": 1e-3}
# What a result may differ by at the edges of a dtype, relative to it.
CLOSE = {"f32": 1e-4, "f16": 4e-3, "bf16": 3e-2}
LARGEST = {"f32": float(np.finfo(np.float32).max), "f16": 65504.0, "bf16": 3.3895e38}
SMALLEST = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}  # that are normal numbers


def limit(op: str, dtype: str) -> float:
    """The largest NMSE that `op` may have on a device that computes in `dtype`."""
    least = _FLOAT32.get(op, 1e-7)
    return least if op in MOVES else max(least, _NARROW.get(dtype, 0.0))


def nmse(expected: np.ndarray, actual: np.ndarray) -> float:
    """sum((a - e)^2) / sum(e^2); infinite where one of them is not finite."""
    wide, other = expected.astype(np.float64), actual.astype(np.float64)
    error = float(np.square(other - wide).sum())
    if not math.isfinite(error):
        return math.inf
    size = float(np.square(wide).sum())
    return error / size if size else (math.inf if error else 0.0)


def fault(op: str, dtype: str, expected: np.ndarray, actual: np.ndarray) -> str | None:
    """What is wrong with a result, or None."""
    if expected.shape != actual.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    odd = ~np.isfinite(actual)
    if odd.any():
        at = np.argwhere(odd)[0].tolist()
        return f"{actual[tuple(at)]} at {at}, expected {expected[tuple(at)]}"
    error, most = nmse(expected, actual), limit(op, dtype)
    return f"NMSE {error:.3g}, at most {most:g} is allowed" if error > most else None


def edge_fault(dtype: str, expected: np.ndarray, actual: np.ndarray) -> str | None:
    """The same for values at the edges of a dtype, one by one.

    Where the reference leaves the dtype's range the result is infinite or the largest number,
    of the same sign. Numbers too small to be normal may be flushed to zero.
    """
    close, largest = CLOSE[dtype], LARGEST[dtype]
    over = np.abs(expected) > largest * (1 - close)
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= close * np.abs(expected) + 4 * SMALLEST[dtype]
    saturated = over & (np.sign(actual) == np.sign(expected))
    saturated &= np.abs(actual) >= largest * (1 - close)
    wrong = np.argwhere(~(near | saturated))
    if not len(wrong):
        return None
    at = wrong[0].tolist()
    return f"{actual[tuple(at)]} at {at}, expected {expected[tuple(at)]}"
