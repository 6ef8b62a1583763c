"""How the Neural Engine rounds: float16 values, float32 sums, one rounding an operation.

Values are kept in float32 arrays that hold float16 numbers: NumPy computes in float16 far
slower. Accumulation in float32 and a single rounding is what mil-hwx-compiler validated on an
M1; what saturates or loses NaN is the profile's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from umbel_ane.profile import Profile

Round = Callable[[np.ndarray], np.ndarray]
LARGEST = 65504.0  # of float16


def half(values: np.ndarray) -> np.ndarray:
    """Rounded to float16, held in float32; beyond its range infinite."""
    return values.astype(np.float16).astype(np.float32)


def rounding(profile: Profile, dtype: str) -> Round:
    """What becomes of a result that is declared to be of `dtype`."""
    if dtype not in ("fp16", "fp32"):
        return lambda values: values
    if dtype == "fp32":
        return without_nan if profile.drops_nan else as_float32
    if not profile.drops_nan:
        return half
    return lambda values: without_nan(half(values))


def as_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32, copy=False)


def without_nan(values: np.ndarray) -> np.ndarray:
    """NaN becomes 0."""
    bad = np.isnan(values)
    return np.where(bad, np.float32(0), values) if bad.any() else as_float32(values)


def saturated(profile: Profile) -> Round:
    """A product's sums beyond the profile's bound are infinite."""
    bound = profile.saturates_at
    if not bound:
        return lambda values: values

    def limit(values: np.ndarray) -> np.ndarray:
        beyond = np.abs(values) > bound
        return np.where(beyond, np.copysign(np.float32(np.inf), values), values)

    return limit


def summed(profile: Profile, values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The sum over `axes`, which stay: in one go, or with each partial sum rounded."""
    chunk, axes = profile.reduction_chunk, tuple(axes)
    length = int(np.prod([values.shape[a] for a in axes]))
    if not chunk or length <= chunk:
        return np.asarray(values.sum(axis=axes, keepdims=True, dtype=np.float32))
    kept = [
        a % values.ndim for a in range(values.ndim) if a not in [b % values.ndim for b in axes]
    ]
    turned = values.transpose(*kept, *(a % values.ndim for a in axes))
    flat = turned.reshape(*(values.shape[a] for a in kept), length)
    starts = range(0, length, chunk)
    parts = [half(flat[..., i : i + chunk].sum(-1, dtype=np.float32)) for i in starts]
    shape = [1 if a not in kept else n for a, n in enumerate(values.shape)]
    return np.sum(parts, axis=0, dtype=np.float32).reshape(shape)
