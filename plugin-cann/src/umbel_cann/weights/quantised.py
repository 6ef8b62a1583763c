"""Weights of 4 and 8 bits, as aclnnWeightQuantBatchMatmulV2 takes them.

Groups of 32 values share a scale, and some an offset: value = (number + offset) scale. All
numbers of a weight stand first, signed, those of 4 bits two in a byte, the first one low; then
all scales and all offsets in float16. A stack of experts lies as one matrix of all their rows.

`kept` says which dtype a weight has on the device: its own where its values stay what they are
(to the rounding of scales and offsets to float16, as a weight in float16 is rounded), else
Q8_0, as the core converts to it. README.md has the errors, beside those of the types.
"""

from __future__ import annotations

import itertools

import attrs
import numpy as np
from umbel.gguf.types import Q8_0, DType
from umbel.graph import Role, Tensor

from umbel_cann.chips import Chip
from umbel_cann.heap import ALIGNMENT

GROUP = 32
MOST = 65535  # columns and rows of a product at most
TABLES = ("token_embd.", "position_embd.", "token_types.")  # of which rows are taken

_FOUR = {"q4_0", "q4_1", "q4_k", "tq1_0", "tq2_0"}  # whose numbers have 4 bits
_OFFSET = {"q4_1", "q4_k", "q5_1", "q5_k"}
_WHOLE = {"q8_0", "q5_0", "q3_k", "iq4_nl", "iq4_xs", "mxfp4"}
_WHOLE |= {"iq2_xxs", "iq3_xxs", "iq3_s"}
OWN = _FOUR | _OFFSET | _WHOLE  # those whose values stay


@attrs.frozen
class Form:
    """What the parts of a weight are."""

    bits: int
    offsets: bool


def kept(tensor: Tensor, chip: Chip) -> DType | None:
    """The dtype in which a chip multiplies a weight of a file; None: not with so few bits."""
    if not tensor.dtype.quantised:
        return None
    dtype = tensor.dtype if tensor.dtype.name in OWN else Q8_0
    return dtype if form(attrs.evolve(tensor, dtype=dtype, strides=()), chip) else None


def form(weight: Tensor, chip: Chip) -> Form | None:
    """Of a weight that has the dtype in which it is kept; None: it has no such parts there.

    Rows are taken of numbers of 8 bits only.
    """
    name, shape = weight.dtype.name, weight.shape
    if name not in OWN or weight.role is not Role.WEIGHT:
        return None
    if len(shape) not in (2, 3) or shape[-1] > MOST:  # a matrix, or a stack of experts
        return None
    few = name in _FOUR and not weight.name.startswith(TABLES)
    if few and "int4" in chip.weight_quant:
        return Form(4, name in _OFFSET)
    return Form(8, name in _OFFSET) if "int8" in chip.weight_quant else None


@attrs.frozen
class Layout:
    """Where the parts of a weight of so many values lie, in bytes from its start."""

    form: Form
    size: int

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Start and bytes of the numbers, the scales and the offsets, if there are some."""
        sizes = [self.size * self.form.bits // 8]
        sizes += [self.size // GROUP * 2] * (2 if self.form.offsets else 1)
        ends = itertools.accumulate(-(-n // ALIGNMENT) * ALIGNMENT for n in sizes)
        return tuple(zip((0, *ends), sizes, strict=False))

    @property
    def nbytes(self) -> int:
        return sum(self.parts[-1])

    def places(self, first: int) -> tuple[int, ...]:
        """Where the parts of values lie that begin with number `first`, a multiple of 32."""
        (numbers, _), *others = self.parts
        at = numbers + first * self.form.bits // 8
        return at, *(start + first // GROUP * 2 for start, _ in others)


def blocks(form: Form, parts: list[np.ndarray]) -> np.ndarray:
    """The parts, as bytes, in blocks of a file: Q8_0, Q4_0 or Q4_1; numbers of 8 bits with an
    offset as the 32 numbers behind scale and offset."""
    numbers, *others = parts
    halves = [half.reshape(-1, 2) for half in others]
    if form.bits == 8:
        return np.hstack([*halves, numbers.reshape(-1, GROUP)])
    if form.offsets:  # Q4_1 has the least value in its place
        scale, offset = (half.view("<f2").astype(np.float32) for half in halves)
        with np.errstate(all="ignore"):
            halves[1] = ((offset - 8) * scale).astype("<f2").view(np.uint8)
    pairs = numbers.reshape(-1, GROUP // 2) ^ np.uint8(0x88)
    values = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(-1, GROUP)
    return np.hstack([*halves, values[:, : GROUP // 2] | values[:, GROUP // 2 :] << 4])
