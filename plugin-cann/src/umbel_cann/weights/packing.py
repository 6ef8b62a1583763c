"""From blocks as files have them to numbers, scales and offsets: see `quantised`.

The formats are those of ggml's `block_*` structures, which the `gguf` package decodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from umbel.errors import DeviceError
from umbel.gguf.types import DType, dequantise

from umbel_cann.weights.quantised import GROUP, Form

Array = np.ndarray
Parts = tuple[Array, ...]  # numbers, scales, and perhaps offsets; by groups

_LARGEST = 65504.0  # of a float16, in which kernels may make values of numbers
_F32 = np.float32


def packed(raw: Array, dtype: DType, kept: DType, form: Form) -> Parts:
    """The parts of blocks in a row, as they lie; `DeviceError` where a value is too large."""
    with np.errstate(all="ignore"):  # what is not finite in a file stays so
        if dtype is kept:
            blocks = np.ascontiguousarray(raw).reshape(-1, dtype.block_bytes)
            pack = _OWN.get(dtype.name)
            numbers, *others = pack(blocks) if pack else _multiples(blocks, dtype)
        else:
            numbers, *others = _as_q8_0(dequantise(raw, dtype).reshape(-1, GROUP))
        _check(numbers, *others)
        if form.bits == 8 and numbers.dtype == np.uint8:
            numbers = _apart(numbers)
        elif form.bits == 4 and numbers.dtype == np.int8:
            numbers = _joined(numbers.view("<u2"))
    return (numbers.reshape(-1), *(half.astype("<f2").reshape(-1) for half in others))


def _check(numbers: Array, scales: Array, *offsets: Array) -> None:
    """Looks at the values of those groups that could have too large ones."""
    wide, *shifts = (half.astype(_F32) for half in (scales, *offsets))
    shift = shifts[0] if shifts else np.zeros_like(wide)
    may = np.isfinite(wide) & (np.abs(wide) * (128 + np.abs(shift)) > _LARGEST)
    if may.any():
        some = _apart(numbers[may]) if numbers.dtype == np.uint8 else numbers[may]
        values = (some.reshape(-1, GROUP) + shift[may, None]) * wide[may, None]
        if (most := float(np.abs(values).max())) > _LARGEST:
            msg, expected = "a value is too large for the NPU", f"at most {_LARGEST:g}"
            raise DeviceError(msg, expected=expected, got=most, do="choose another device")


def _as_q8_0(values: Array) -> Parts:
    """Whole 127ths of the largest of a group, halves away from 0, as in every Q8_0."""
    scales = np.maximum(values.max(axis=1), -values.min(axis=1)) / _F32(127)
    inverse = np.where(scales == 0, _F32(0), 1 / scales)
    steps = values * inverse[:, None]
    steps += np.copysign(_F32(0.5), steps)
    return steps.astype(np.int8), scales


def _q8_0(blocks: Array) -> Parts:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0)


# 4 bits


def _q4_0(blocks: Array) -> Parts:
    return _pairs(blocks[:, 2:]), _half(blocks, 0)


def _q4_1(blocks: Array) -> Parts:
    scales, least = (_half(blocks, i).astype(_F32) for i in (0, 2))
    return _shifted(_pairs(blocks[:, 4:]), scales, least, 8)


def _q4_k(blocks: Array) -> Parts:
    pairs = _pairs(blocks[:, 16:].reshape(-1, GROUP)).reshape(-1, GROUP // 2)
    return _shifted(pairs, *_of_k(blocks), 8)


def _pairs(halves: Array) -> Array:
    """A file has a number in the low half of a byte, and one from half a group on (Q4_K: the
    same of the next group) in the high one: neighbours come together, and lose 8."""
    two = np.ascontiguousarray(halves).view("<u2")
    pairs: Array = np.concatenate((_joined(two), _joined(two >> 4)), axis=1)
    pairs ^= 0x88
    return pairs


def _joined(two: Array) -> Array:
    """The low four bits of each byte of a pair, in one byte."""
    joined: Array = ((two & 15) | (two >> 4 & 240)).astype(np.uint8)
    return joined


def _apart(pairs: Array) -> Array:
    """Numbers of 4 bits as such of 8."""
    low = (pairs << 4).view(np.int8) >> 4
    return np.stack((low, pairs.view(np.int8) >> 4), axis=-1)


# 8 bits


def _q5_0(blocks: Array) -> Parts:
    return _with_fifth(blocks[:, 6:], blocks[:, 2:6]), _half(blocks, 0)


def _q5_1(blocks: Array) -> Parts:
    scales, least = (_half(blocks, i).astype(_F32) for i in (0, 2))
    return _shifted(_with_fifth(blocks[:, 8:], blocks[:, 4:8]), scales, least, 16)


def _with_fifth(halves: Array, bits: Array) -> Array:
    high = np.unpackbits(bits, axis=1, bitorder="little") << 4
    low = np.concatenate((halves & 15, halves >> 4), axis=1)
    numbers: Array = (low | high).view(np.int8) - np.int8(16)
    return numbers


def _q5_k(blocks: Array) -> Parts:
    low = blocks[:, 48:].reshape(-1, 4, 1, GROUP) >> np.array([[0], [4]], np.uint8) & 15
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    numbers = (low.reshape(-1, 8, GROUP) | high << 4).view(np.int8) - np.int8(16)
    return _shifted(numbers.reshape(-1, GROUP), *_of_k(blocks), 16)


def _iq4_xs(blocks: Array) -> Array:
    high = _number(blocks, 2)[:, None] >> 2 * np.arange(8) & 3
    factors: Array = (_fours(blocks[:, 4:8]) | high << 4) - 32
    return factors


# Of what all values of a group are whole multiples. In Q3_K they are -124 to 128 times as much:
# so it is taken as negative.
_UNITS: dict[str, Callable[[Array], Array]] = {
    "q3_k": lambda b: -_half(b, 108).repeat(8),
    "tq1_0": lambda b: _half(b, 52).repeat(8),
    "tq2_0": lambda b: _half(b, 64).repeat(8),
    "iq2_xxs": lambda b: _times(b, (b[:, 9::8] >> 4) * _F32(0.25) + _F32(0.125)),
    "iq3_xxs": lambda b: _times(b, (b[:, 69::4] >> 4) * _F32(0.5) + _F32(0.25)),
    "iq3_s": lambda b: _times(b, 2 * _fours(b[:, 106:]) + 1),
    "iq4_nl": lambda b: _half(b, 0),
    "iq4_xs": lambda b: _times(b, _iq4_xs(b)),
    "mxfp4": lambda b: np.ldexp(_F32(1), b[:, 0].astype(np.int32) - 128),
}


def _multiples(blocks: Array, dtype: DType) -> Parts:
    units = _UNITS[dtype.name](blocks)
    return _over(dequantise(blocks, dtype).reshape(-1, GROUP), units.astype(_F32)), units


def _times(blocks: Array, factors: Array) -> Array:
    """The blocks' first float16 times those of their groups."""
    units: Array = (_half(blocks, 0).astype(_F32)[:, None] * factors).astype(_F32).reshape(-1)
    return units


def _fours(bytes_: Array) -> Array:
    """The four bits of each half of a byte, the low one first."""
    return np.stack((bytes_ & 15, bytes_ >> 4), axis=-1).reshape(len(bytes_), -1).astype(int)


def _over(values: Array, scales: Array) -> Array:
    """Values as whole multiples of the scales of their groups."""
    inverse = np.where(scales == 0, _F32(0), 1 / scales)
    numbers: Array = np.rint(values * inverse[:, None]).astype(np.int8)
    return numbers


# parts of blocks


def _number(blocks: Array, at: int) -> Array:
    """The 16 bits at that byte of each block."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<u2")[:, 0]


def _half(blocks: Array, at: int) -> Array:
    return _number(blocks, at).view("<f2")


def _of_k(blocks: Array) -> tuple[Array, Array]:
    """The scales and least values of the eight groups of a block of Q4_K or Q5_K: of six bits
    each, in twelve bytes, and multiples of the block's two float16."""
    d, least = (_half(blocks, i).astype(_F32)[:, None] for i in (0, 2))
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((a & 63, (c & 15) | (a >> 2 & 48)), axis=1)
    minima = np.concatenate((b & 63, (c >> 4) | (b >> 2 & 48)), axis=1)
    return (d * scales).reshape(-1), -(least * minima).reshape(-1)


def _shifted(numbers: Array, scales: Array, least: Array, shift: int) -> Parts:
    """Of value = number scale + least, with `shift` taken off the numbers from 0 on.

    The middle of a group is what the rounding of its scale does not move. A group whose values
    differ by less than float16 can tell is one value: all its numbers are 1.
    """
    rounded, middle = scales.astype(np.float16), _F32(shift - 0.5)
    offsets = (least + middle * scales) / rounded.astype(_F32) + _F32(0.5)
    alike = ~(np.abs(offsets) < _LARGEST)
    if alike.any():
        rounded[alike], offsets[alike] = least[alike], 0
        numbers[alike] = 1 if shift == 16 else 0x11
    return numbers, rounded, offsets


_OWN: dict[str, Callable[[Array], Parts]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q4_k": _q4_k,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q5_k": _q5_k,
}
