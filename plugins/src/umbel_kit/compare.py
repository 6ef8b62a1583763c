"""When a device's result is right: limits for the error, and rules for what is not finite.

The measure is ggml's: the squared error over the squared size of the reference (NMSE). Inputs
are rounded to the dtype that the device computes in before the reference sees them, so a limit
is about the operation alone.

Infinities and NaN: where the reference is infinite, so is the result, with the same sign, or it
is the largest number. Where it is NaN (inf - inf, 0 * inf, a NaN that came in) the result of a
device that computes in float32 is no number either: NaN, or infinite, since it depends on the
formula what becomes of infinities. In a narrower dtype any answer will do there, since
accelerators may have no NaN. Everywhere else the result is finite, so a NaN in one row never
reaches another. Operations that only move values keep all of them as they are, but for NaN on
a device that says of itself that it drops them (`drops_nan` among its details).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import SupportsInt

import numpy as np

MOVES = frozenset({"concat", "cont", "set_rows", "top_k"})  # no arithmetic: nothing may change
_EXACT = MOVES | {"neg", "relu"}  # no rounding in any dtype either
_PRODUCTS = frozenset({"mul_mat", "mul_mat_id", "flash_attn_ext", "kv_attention"})
_ATTENTION = frozenset({"soft_max", "flash_attn_ext", "kv_attention"})

# Float32. The default and soft_max's limit are ggml's (tests/test-backend-ops.cpp); the
# decompositions in float32 stay under 4e-10, which is that of gelu_erf's polynomials.
_USUAL = 1e-7
_SOFT_MAX = 1e-6  # exponentials: attention's, too
# ggml's 5e-4 for products is what activations rounded to 8 bits cost: only where the weight or
# the cache is quantised. Activations rounded to a weight's f16 cost 6e-8, to bf16 4e-6.
_STORED = {"f32": _USUAL, "f16": 5e-7, "bf16": 2e-5}
_QUANTISED = 5e-4
# Float16. The references rounded once cost up to 2.0e-7 (norm with weight and bias); the
# decompositions, rounded at every step, up to 9.7e-7 (norm again); sums of products kept in
# float16 grow with their length, 5e-6 for 512.
_F16 = 1e-6
_F16_COMPOSITES = dict.fromkeys(
    ("norm", "rms_norm", "ssm_conv", "ssm_scan", "geglu_erf", "geglu_quick", "softplus"), 4e-6
)
_F16_PRODUCTS = dict.fromkeys(_PRODUCTS, 1e-5)
# bf16 has three bits less: 64 times the squared error (3e-5 and 4e-5 were measured).
_TIMES = {"f32": 0.0, "f16": 1.0, "bf16": 64.0}
# Rows of a quantised cache: one value on the border between two steps costs 5e-6 in 64.
_STEP = 1e-5

# What a result may differ by at the edges of a dtype, relative to it.
CLOSE = {"f32": 1e-4, "f16": 4e-3, "bf16": 3e-2}
LARGEST = {"f32": float(np.finfo(np.float32).max), "f16": 65504.0, "bf16": 3.3895e38}
SMALLEST = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}  # that are normal numbers


def limit(op: str, dtype: str, stored: str = "") -> float:
    """The largest NMSE that `op` may have on a device that computes in `dtype`.

    `stored` is the dtype of the weight or cache that it reads; "" is one that nobody knows.
    """
    if op in _EXACT:
        return 0.0
    least = _SOFT_MAX if op in _ATTENTION else _USUAL
    if op in _PRODUCTS:
        least = max(least, _STORED.get(stored, _QUANTISED))
    if op == "state" and stored not in _STORED:
        least = _STEP
    rounding = _F16_COMPOSITES.get(op, _F16_PRODUCTS.get(op, _F16))
    return max(least, rounding * _TIMES[dtype])


def nmse(expected: np.ndarray, actual: np.ndarray) -> float:
    """sum((a - e)^2) / sum(e^2); infinite where one of them is not finite."""
    wide, other = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = float(np.square(other - wide).sum())
    if not math.isfinite(error):
        return math.inf
    size = float(np.square(wide).sum())
    return error / size if size else (math.inf if error else 0.0)


def fault(
    op: str,
    dtype: str,
    expected: np.ndarray,
    actual: np.ndarray,
    stored: str = "",
    *,
    drops_nan: bool = False,
) -> str | None:
    """What is wrong with a result, or None."""
    if expected.shape != actual.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    finite = np.isfinite(expected)
    wrong = _differs(expected, actual) if op in MOVES else ~np.isfinite(actual) & finite
    wrong |= np.isinf(expected) & ~_beyond(dtype, expected, actual)
    wrong |= _made_up(dtype, expected, actual)
    if drops_nan:
        wrong &= ~np.isnan(expected)
    if wrong.any():
        return _told(expected, actual, np.argwhere(wrong)[0])
    return excess(expected, actual, limit(op, dtype, stored))


def excess(expected: np.ndarray, actual: np.ndarray, most: float) -> str | None:
    """How far the NMSE of what is finite is above its limit, and where most; or None."""
    finite = np.isfinite(expected)
    error = nmse(expected[finite], actual[finite])
    if error <= most:
        return None
    with np.errstate(invalid="ignore"):
        off = np.where(finite, np.abs(actual.astype(np.float64) - expected), 0.0)
    at = np.unravel_index(np.nan_to_num(off, nan=math.inf).argmax(), off.shape)
    worst = f"the largest difference is {_told(expected, actual, at)}"
    return f"NMSE {error:.3g}, at most {most:g} is allowed; {worst}"


def _told(expected: np.ndarray, actual: np.ndarray, at: Iterable[SupportsInt]) -> str:
    where = tuple(map(int, at))
    return f"{actual[where]} at {list(where)}, expected {expected[where]}"


def edge_fault(dtype: str, expected: np.ndarray, actual: np.ndarray) -> str | None:
    """The same for values at the edges of a dtype, one by one.

    Where the reference leaves the dtype's range the result is infinite or the largest number,
    of the same sign. Numbers too small to be normal may be flushed to zero.
    """
    if expected.shape != actual.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    close = CLOSE[dtype]
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= close * np.abs(expected) + 4 * SMALLEST[dtype]
    over = np.abs(expected) > LARGEST[dtype] * (1 - close)
    near &= np.isfinite(expected)  # what is infinitely large is near to nothing
    good = near | (over & _beyond(dtype, expected, actual))
    good |= np.isnan(expected) & ~_made_up(dtype, expected, actual)
    wrong = np.argwhere(~good)
    if not len(wrong):
        return None
    return _told(expected, actual, wrong[0])


def _made_up(dtype: str, expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Where there is a number in the place of a NaN, and the dtype allows none."""
    found: np.ndarray = np.isnan(expected) & np.isfinite(actual) & (dtype == "f32")
    return found


def _differs(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    same: np.ndarray = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    return ~same


def _beyond(dtype: str, expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Where the result is infinite or as large as the dtype goes, on the expected side."""
    large = np.abs(actual) >= LARGEST[dtype] * (1 - CLOSE[dtype])
    found: np.ndarray = large & (np.sign(actual) == np.sign(expected))
    return found
