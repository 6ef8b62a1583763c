"""The types of values, and values as they are written: `0x1.5p-17`, `-1`, `true`, `"valid"`.

Floats are read as hexadecimal or decimal and rounded to their type; they are written so that
reading gives the same bits back. What cannot be read is a ValueError that says what was
expected.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from typing import NoReturn

import attrs
import numpy as np

from umbel_ane.mil.tokens import MINUS

Scalar = bool | int | float | str


@attrs.frozen
class Kind:
    """A type of values: how wide, and what holds them in memory."""

    bits: int
    numpy: np.dtype[np.generic]
    low: int = 0  # of integers
    high: int = 0

    @property
    def is_integer(self) -> bool:
        return self.high > 0


def _integer(bits: int, signed: bool) -> Kind:
    held = np.dtype(f"{'i' if signed else 'u'}{max(bits, 8) // 8}")
    low = -(1 << (bits - 1)) if signed else 0
    return Kind(bits, held, low, low + (1 << bits) - 1)


KINDS = {
    **{f"fp{bits}": Kind(bits, np.dtype(f"f{bits // 8}")) for bits in (16, 32, 64)},
    **{f"int{bits}": _integer(bits, True) for bits in (4, 8, 16, 32, 64)},
    **{f"uint{bits}": _integer(bits, False) for bits in (1, 2, 3, 4, 6, 8, 16, 32, 64)},
    "bool": Kind(8, np.dtype(bool)),
    "string": Kind(0, np.dtype(object)),
}
TYPES = frozenset({*KINDS, "bf16", "fp8e4m3fn", "fp8e5m2"})  # of the rest no value is written

_PACKED = {"fp16": "<e", "fp32": "<f", "fp64": "<d"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "'": "'", "\\": "\\"}
_WRITTEN = {v: f"\\{k}" for k, v in _ESCAPES.items() if k not in "0'"}
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')


def scalar(word: str, dtype: str) -> Scalar:
    """The value that a word says."""
    if dtype in _PACKED:
        return _float(word, dtype)
    if dtype == "bool":
        if word not in ("true", "false"):
            _wanted("true or false")
        return word == "true"
    return string(word) if dtype == "string" else _int(word, dtype)


def array(words: Sequence[str], dtype: str) -> np.ndarray:
    """The values of many words, in one axis."""
    kind = KINDS.get(dtype)
    if kind is None:
        _wanted(f"a BLOBFILE, where the type is {dtype}")
    return np.array([scalar(word, dtype) for word in words], kind.numpy)


def string(word: str) -> str:
    """What a quoted word says."""
    if word[:1] != '"':
        _wanted('a string in "')
    inner = word[1:-1]
    return _ESCAPED.sub(_unescaped, inner) if "\\" in inner else inner


def rounded(value: float, dtype: str) -> float:
    """The number of that float type that is nearest; ValueError if it is beyond the largest."""
    form = _PACKED[dtype]
    try:
        found: float = struct.unpack(form, struct.pack(form, value))[0]
    except OverflowError:
        _wanted(f"a number that {dtype} can hold")
    return found


def written(value: Scalar | np.generic, dtype: str, floats: str) -> str:
    """One value as text; `floats` is "hex" or "decimal"."""
    if dtype == "string":
        return quoted(str(value))
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in _PACKED:
        return str(int(value))
    number = rounded(float(value), dtype)
    if not math.isfinite(number):
        return str(number)  # nan, inf, -inf
    return _hex(number) if floats == "hex" else str(KINDS[dtype].numpy.type(number))


def quoted(text: str) -> str:
    """A string as a word."""
    return f'"{_TO_ESCAPE.sub(_escaped, text)}"'


def _wanted(what: str) -> NoReturn:
    raise ValueError(what)


def _hex(number: float) -> str:
    """As C prints it with %a: no zeros at the end of the fraction."""
    digits, _, power = number.hex().partition("p")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits or '0x0'}p{power}"


def _float(word: str, dtype: str) -> float:
    plain = word.replace(MINUS, "-").lower()
    try:
        number = float.fromhex(plain) if "0x" in plain else float(plain)
    except (ValueError, OverflowError):
        _wanted(f"a number of {dtype}")
    if math.isinf(number) and "inf" not in plain:
        _wanted(f"a number that {dtype} can hold")
    return rounded(number, dtype)


def _int(word: str, dtype: str) -> int:
    kind = KINDS.get(dtype)
    if kind is None:
        _wanted(f"a BLOBFILE, where the type is {dtype}")
    plain = word.replace(MINUS, "-").lower()
    try:
        number = int(plain, 16 if "0x" in plain else 10)
    except ValueError:
        _wanted(f"an integer of {dtype}")
    if not kind.low <= number <= kind.high:
        _wanted(f"an integer from {kind.low} to {kind.high}")
    return number


def _unescaped(found: re.Match[str]) -> str:
    what = found[1]
    if len(what) == 3:
        return chr(int(what[1:], 16))
    if what not in _ESCAPES:
        _wanted(r"an escape that is known: \n \t \r \0 \" \\ \xHH")
    return _ESCAPES[what]


def _escaped(found: re.Match[str]) -> str:
    return _WRITTEN.get(found[0], f"\\x{ord(found[0]):02x}")
