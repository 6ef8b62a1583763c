"""The header of one GGUF file (versions 2 and 3, little-endian), checked as it is read.

Reference: the GGUF specification (ggml-org/ggml, docs/gguf.md). Rules that it leaves open:

* `general.alignment` is a u32 and a power of two from 8 to 16 MiB;
* a key is 1 to 65,535 bytes of UTF-8, a tensor's name 1 to 64; both are unique;
* a string value may hold any bytes (surrogateescape), a bool is the byte 0 or 1, and arrays of
  arrays are read to a depth of four;
* a tensor has at most four dimensions (none: one value), zero is a legal size, and neither a
  dimension nor a tensor exceeds 2^63 - 1;
* its offset is a multiple of the alignment, and its last byte lies in the file. Tensors may
  overlap, and bytes after the last one are ignored.

A length or count is compared with the bytes left before anything is read or allocated. All
sizes are Python integers: nothing wraps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Iterator, Mapping
from mmap import mmap
from pathlib import Path
from typing import NoReturn, TypeAlias

import attrs
import numpy as np

from umbel.errors import ModelFormatError
from umbel.gguf.types import BY_NUMBER, DType

Value: TypeAlias = "int | float | bool | str | list[Value]"

MAX_KEY, MAX_NAME = 65_535, 64
MAX_DEPTH = 4
MAX_DIMS = 4
MAX_SIZE = 2**63 - 1
ALIGNMENTS = [1 << n for n in range(3, 25)]
TRUNCATED = "does not fit into the file: it is truncated or malformed"
U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", U32: "<u4", 5: "<i4", 6: "<f4", BOOL: "?"}
_NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_SMALLEST = {kind: np.dtype(code).itemsize for kind, code in _NUMBERS.items()}  # bytes
_SMALLEST |= {STRING: 8, ARRAY: 12}
_read_length = struct.Struct("<Q").unpack_from


def refuse(
    what: str, where: object, expected: object = None, got: object = None, do: str | None = None
) -> NoReturn:
    raise ModelFormatError(what, where=where, expected=expected, got=got, do=do)


@attrs.define
class Cursor:
    """A position in a mapped file; every read is checked against the end first.

    `what` is being read: errors speak of it.
    """

    data: mmap
    path: Path
    pos: int = 0
    what: str = "the GGUF header"

    def fail(self, what: str, expected: object = None, got: object = None) -> NoReturn:
        do = "fetch the file again; if it is whole, get it from another source"
        refuse(f"{self.what} {what}", f"{self.path}, byte {self.pos}", expected, got, do)

    def take(self, n: int) -> bytes:
        left = len(self.data) - self.pos
        if n > left:
            self.fail(TRUNCATED, f"{n} bytes", f"{left} bytes")
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, smallest: int) -> int:
        """A number of items, refused where so many cannot fit into the rest of the file."""
        count, most = self.u64(), (len(self.data) - self.pos) // smallest
        if count > most:
            self.fail(TRUNCATED, f"at most {most}", count)
        return count

    def name(self, kind: str, limit: int, taken: Container[str]) -> str:
        """A name that is not taken yet; from now on errors speak of what is called so."""
        self.what = f"the name of a {kind}"
        length = self.u64()
        if not 1 <= length <= limit:
            self.fail("has a wrong length", f"1 to {limit} bytes", f"{length} bytes")
        raw = self.take(length)
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            self.fail("is not UTF-8", got=raw[:80])
        self.what = f"the {kind} {name[:80]!r}"
        if name in taken:
            self.fail("occurs twice")
        return name


class Metadata(Mapping[str, Value]):
    """The key-value pairs in file order; arrays of strings are decoded when first asked for.

    Until then they are bytes, as in the file: a vocabulary takes longer than all the rest.
    `spans` has where in the file each value stands, from its type to its last byte.
    """

    def __init__(self, values: dict[str, Value | bytes], spans: dict[str, slice]) -> None:
        self._values = values
        self.spans = spans

    def __getitem__(self, key: str) -> Value:
        value = self._values[key]
        if isinstance(value, bytes):
            value = self._values[key] = _decode_strings(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@attrs.frozen
class TensorInfo:
    """Where a tensor lies: `offset` is counted from the start of the file of its part.

    A type that is not in the table has a dtype named "type N" and no size.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    offset: int
    nbytes: int
    part: int = 0


@attrs.frozen
class Header:
    """What stands before the tensor data of one file."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


def read_header(data: mmap, path: Path) -> Header:
    cursor = Cursor(data, path)
    version = _read_version(cursor)
    cursor.what = "the number of tensors"
    n_tensors = cursor.count(smallest=25)
    metadata = _read_metadata(cursor)
    alignment = metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)
    tensors: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        name = cursor.name("tensor", MAX_NAME, tensors)
        tensors[name] = _read_tensor(cursor, name, alignment)
    start = -(-cursor.pos // alignment) * alignment
    placed = {name: _place(cursor, tensor, start) for name, tensor in tensors.items()}
    return Header(version, alignment, metadata, placed)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4)
    if magic != b"GGUF":
        cursor.fail("is not there: this is not a GGUF file", b"GGUF", magic)
    version = cursor.u32()
    if version & 0xFFFF == 0:
        cursor.fail("is big-endian, which is not supported", "little-endian", "big-endian")
    if version not in (2, 3):
        cursor.fail("has a version that is not supported", "2 or 3", version)
    return version


def _read_metadata(cursor: Cursor) -> Metadata:
    cursor.what = "the number of metadata keys"
    values: dict[str, Value | bytes] = {}
    spans: dict[str, slice] = {}
    for _ in range(cursor.count(smallest=13)):
        key = cursor.name("metadata key", MAX_KEY, values)
        start = cursor.pos
        kind = _read_type(cursor)
        values[key] = value = _read_value(cursor, kind)
        spans[key] = slice(start, cursor.pos)
        if key == "general.alignment" and (kind != U32 or value not in ALIGNMENTS):
            expected = f"a u32, a power of two from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}"
            cursor.fail("has a wrong value", expected, f"{value!r:.80} of type {kind}")
    return Metadata(values, spans)


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> TensorInfo:
    """A tensor's description, its offset as it stands: relative to the start of the data."""
    n_dims = cursor.u32()
    if n_dims > MAX_DIMS:
        cursor.fail("has too many dimensions", f"at most {MAX_DIMS}", n_dims)
    dims = [cursor.u64() for _ in range(n_dims)]
    number, offset = cursor.u32(), cursor.u64()
    dtype = BY_NUMBER.get(number) or DType(f"type {number}", number, 1, 0)
    shape = tuple(reversed(dims))  # GGUF puts the contiguous axis first, NumPy last
    row = shape[-1] if shape else 1
    if row % dtype.block:
        what = f"has rows that are no whole number of {dtype.name} blocks"
        cursor.fail(what, f"a multiple of {dtype.block}", row)
    # A zero must not hide a monster beside it: NumPy refuses such shapes too.
    if math.prod(max(n, 1) for n in shape) * max(dtype.block_bytes, 1) > MAX_SIZE:
        cursor.fail("is too large", f"at most {MAX_SIZE} bytes", shape)
    if offset % alignment:
        cursor.fail("is not aligned", f"an offset that is a multiple of {alignment}", offset)
    nbytes = math.prod(shape[:-1]) * dtype.row_bytes(row)
    return TensorInfo(name, shape, dtype, offset, nbytes)


def _place(cursor: Cursor, tensor: TensorInfo, start: int) -> TensorInfo:
    """The tensor with its offset from the start of the file; every byte of it lies inside."""
    # A file without tensor data may end before the padding does: only offset 0 is left then.
    size, end = len(cursor.data), tensor.offset + tensor.nbytes
    if end > max(size - start, 0):
        cursor.what = f"the tensor {tensor.name!r}"
        cursor.fail(TRUNCATED, f"at least {start + end} bytes", f"{size} bytes")
    return attrs.evolve(tensor, offset=start + tensor.offset)


def _read_type(cursor: Cursor) -> int:
    kind = cursor.u32()
    if kind not in _SMALLEST:
        cursor.fail("has an unknown value type", f"0 to {max(_SMALLEST)}", kind)
    return kind


def _read_value(cursor: Cursor, kind: int, depth: int = 0) -> Value | bytes:
    """The value of a type; an array of strings as it stands in the file."""
    if kind == STRING:
        return str(cursor.take(cursor.u64()), "utf-8", "surrogateescape")
    if kind != ARRAY:
        return _read_numbers(cursor, kind, 1)[0]
    if depth == MAX_DEPTH:
        cursor.fail("has arrays nested too deeply", f"at most {MAX_DEPTH} levels")
    kind = _read_type(cursor)
    count = cursor.count(_SMALLEST[kind])
    if kind == STRING:
        return _take_strings(cursor, count)
    if kind != ARRAY:
        return _read_numbers(cursor, kind, count)
    inner = (_read_value(cursor, ARRAY, depth + 1) for _ in range(count))
    return [_decode_strings(v) if isinstance(v, bytes) else v for v in inner]


def _read_numbers(cursor: Cursor, kind: int, count: int) -> list[Value]:
    raw = cursor.take(count * _SMALLEST[kind])
    if kind == BOOL and (odd := raw.translate(None, b"\0\1")):
        cursor.fail("is not a bool", "the byte 0 or 1", odd[0])
    return np.frombuffer(raw, _NUMBERS[kind]).tolist()  # type: ignore[no-any-return]


def _take_strings(cursor: Cursor, count: int) -> bytes:
    data, end = cursor.data, cursor.pos
    try:
        for _ in range(count):  # the hot loop of opening: a vocabulary has 10^5 strings
            end += 8 + _read_length(data, end)[0]
    except (struct.error, OverflowError):
        end += 8  # the length that should stand here lies after the end, which `take` reports
    return cursor.take(end - cursor.pos)


def _decode_short(raw: bytes) -> list[Value] | None:
    """The strings, decoded together in a third of the time, where all have 1 to 255 bytes and
    none of these is zero, as in most vocabularies.

    Then seven zeros, the high bytes of a length, stand between any two, and before those the
    low byte of that length.
    """
    data = np.frombuffer(bytearray(raw), np.uint8)
    zeros = np.flatnonzero(data == 0)
    starts = zeros[::7] - 1  # of the lengths
    ends = starts + 8 + data[starts]  # of the strings
    adjacent = np.array_equal(np.append(0, ends), np.append(starts, len(raw)))
    if not adjacent or not np.array_equal(zeros[6::7], starts + 7):
        return None
    data[starts] = 1  # no part of a character
    text = str(data.data, "utf-8", "surrogateescape") + "\1"
    return [part[:-1] for part in text.split("\0" * 7)[1:]]


def _decode_strings(raw: bytes) -> list[Value]:
    short = _decode_short(raw)
    if short is not None:
        return short
    pos = 0
    strings: list[Value] = []
    while pos < len(raw):
        start = pos + 8
        pos = start + _read_length(raw, pos)[0]
        strings.append(str(raw[start:pos], "utf-8", "surrogateescape"))
    return strings
