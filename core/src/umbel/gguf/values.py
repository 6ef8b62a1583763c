"""The values of a GGUF header: a cursor that stays in the file, arrays decoded on demand.

Reference: the GGUF specification (ggml-org/ggml, docs/gguf.md). Rules that it leaves open:

* a length or count is compared with the bytes left before anything is read or allocated;
* a key is UTF-8, 1 to 65,535 bytes long; a string value may hold any bytes (surrogateescape);
* a bool is the byte 0 or 1;
* arrays of arrays are read to a depth of four.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import attrs
import numpy as np

from umbel.errors import ModelFormatError

Value: TypeAlias = "int | float | bool | str | list[Value]"

AGAIN = "fetch the file again and compare its size with the original's"
MAX_KEY = 65_535
MAX_DEPTH = 4

U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
_CODES = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", U32: "<u4", 5: "<i4", 6: "<f4", BOOL: "?"}
_CODES |= {10: "<u8", 11: "<i8", 12: "<f8"}
_NUMBERS = {kind: np.dtype(code) for kind, code in _CODES.items()}
_SMALLEST = {kind: dtype.itemsize for kind, dtype in _NUMBERS.items()} | {STRING: 8, ARRAY: 12}
_read_length = struct.Struct("<Q").unpack_from


def refuse(
    what: str, where: object, expected: object = None, got: object = None, do: str | None = None
) -> NoReturn:
    raise ModelFormatError(what, where=where, expected=expected, got=got, do=do)


@attrs.define
class Cursor:
    """A position in a mapped file; every read is checked against the end first."""

    data: mmap
    path: Path
    pos: int = 0

    def fail(
        self, what: str, expected: object = None, got: object = None, do: str | None = None
    ) -> NoReturn:
        refuse(what, f"{self.path}, byte {self.pos}", expected, got, do)

    def take(self, n: int, what: str) -> bytes:
        left = len(self.data) - self.pos
        if n > left:
            what = f"the file ends inside {what}: it is truncated or malformed"
            self.fail(what, f"{n} bytes", f"{left} bytes", AGAIN)
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string(self, what: str) -> bytes:
        return self.take(self.u64(f"the length of {what}"), what)

    def name(self, what: str, limit: int) -> str:
        """A key or a name: strict UTF-8 of 1 to `limit` bytes."""
        raw = self.string(what)
        if not 1 <= len(raw) <= limit:
            got = f"{len(raw)} bytes: {raw[:80]!r}"
            self.fail(f"{what} has a wrong length", f"1 to {limit} bytes", got)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", got=raw[:80])

    def bound(self, count: int, smallest: int, what: str) -> int:
        """`count`, refused where so many items cannot fit into the rest of the file."""
        most = (len(self.data) - self.pos) // smallest
        if count > most:
            what = f"the file is too short for its number of {what}: truncated or malformed"
            self.fail(what, f"at most {most}", count, AGAIN)
        return count


@attrs.frozen
class Packed:
    """An array as it stands in the file, copied so that it outlives the mapping."""

    kind: int
    raw: bytes

    def decode(self) -> list[Any]:
        if self.kind == STRING:
            return self._strings()
        numbers: list[Any] = np.frombuffer(self.raw, _NUMBERS[self.kind]).tolist()
        return numbers

    def _strings(self) -> list[str]:
        raw, pos, out = self.raw, 0, []
        while pos < len(raw):
            start = pos + 8
            pos = start + _read_length(raw, pos)[0]
            out.append(str(raw[start:pos], "utf-8", "surrogateescape"))
        return out


class Metadata(Mapping[str, Value]):
    """The key-value pairs in file order; an array is decoded when it is first asked for."""

    def __init__(self, values: dict[str, Value | Packed]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Value:
        value = self._values[key]
        if isinstance(value, Packed):
            value = self._values[key] = value.decode()
        return value

    def packed(self, key: str) -> Value | Packed:
        """The value without decoding it."""
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values  # Mapping's own would decode the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_value(cursor: Cursor, kind: int, what: str) -> Value | Packed:
    """The value of type number `kind`; arrays of numbers and of strings stay packed."""
    if kind == STRING:
        return cursor.string(what).decode("utf-8", "surrogateescape")
    if kind == ARRAY:
        return _read_array(cursor, what, 1)
    _check_kind(cursor, kind, what)
    value: Value = _read_numbers(cursor, kind, 1, what).decode()[0]
    return value


def _read_array(cursor: Cursor, what: str, depth: int) -> Packed | list[Value]:
    if depth > MAX_DEPTH:
        cursor.fail(f"{what} has arrays nested too deeply", f"at most {MAX_DEPTH} levels")
    kind = cursor.u32(f"the element type of {what}")
    _check_kind(cursor, kind, what)
    count = cursor.u64(f"the number of elements of {what}")
    cursor.bound(count, _SMALLEST[kind], f"elements of {what}")
    if kind == ARRAY:
        inner = (_read_array(cursor, what, depth + 1) for _ in range(count))
        return [v.decode() if isinstance(v, Packed) else v for v in inner]
    if kind == STRING:
        return Packed(kind, _take_strings(cursor, count, what))
    return _read_numbers(cursor, kind, count, what)


def _check_kind(cursor: Cursor, kind: int, what: str) -> None:
    if kind not in _SMALLEST:
        cursor.fail(f"{what} has an unknown value type", f"0 to {max(_SMALLEST)}", kind)


def _read_numbers(cursor: Cursor, kind: int, count: int, what: str) -> Packed:
    raw = cursor.take(count * _SMALLEST[kind], what)
    if kind == BOOL and (odd := raw.translate(None, b"\0\1")):
        cursor.fail(f"{what} is not a bool", "the byte 0 or 1", odd[0])
    return Packed(kind, raw)


def _take_strings(cursor: Cursor, count: int, what: str) -> bytes:
    data, pos = cursor.data, cursor.pos
    try:
        for _ in range(count):  # the hot loop of opening: a vocabulary has 10^5 strings
            pos += 8 + _read_length(data, pos)[0]
    except (struct.error, OverflowError):
        pos += 8  # the length that should stand here lies after the end, which `take` reports
    return cursor.take(pos - cursor.pos, what)
