"""What is tried: each operator with tiny tensors.

An operator that a lowering uses has a probe here; a test sees to it. A probe without a variant
answers for its operator and dtype, where the dtype is that of the first tensor in the call. One
with a variant answers a question of `chips.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from umbel_cann.probing.maker import PLACES, TAKEN, Maker, copies
from umbel_cann.probing.probe import Data, Probe, Views
from umbel_cann.probing.special import attention, convolution, last, quantised
from umbel_cann.views import FLOAT, FLOAT16, INT32, Scalar


def integers() -> Iterator[Probe]:
    ids = np.arange(-8, 24, dtype=np.int32).reshape(4, 8)
    casts = (
        ("Cast", ids, number, Data(after=ids.astype(kind)))
        for number, kind in ((FLOAT16, np.float16), (FLOAT, np.float32))
    )
    yield Probe("Cast", "i32", tuple(casts))
    yield copies(ids, "i32")
    words = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (16, 64)).astype(np.int32)
    for name, axis in TAKEN:  # rows of any bits, and single numbers
        tables = words, np.ascontiguousarray(words[:, :1])
        rows = ((name, t, *axis, PLACES, Data(after=t[PLACES])) for t in tables)
        yield Probe(name, "i32", tuple(rows))
    yield Probe("Add", "i32", (("Add", ids, ids, Scalar(1, INT32), Data(after=2 * ids)),))
    joined = Data(after=np.concatenate([ids, ids], 1))
    yield Probe("Cat", "i32", (("Cat", Views([ids, ids]), 1, joined),))


def probes() -> Iterator[Probe]:
    """All of them, the basic ones first."""
    half, single = Maker("f16"), Maker("f32")
    for of in (half, single):
        for family in (of.basic, of.elementwise, of.rows, of.norms, of.fused):
            yield from family()
        yield from convolution(of)
    yield from integers()
    yield from attention(half)
    yield from quantised(half)
    for of in (half, single):
        yield from of.variants()
    yield from last(half)
