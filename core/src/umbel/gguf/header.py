"""The header of one GGUF file (versions 2 and 3, little-endian), checked as it is read.

Reference: the GGUF specification (ggml-org/ggml, docs/gguf.md). The limits:

* `general.alignment` is a u32 and a power of two from 8 to 16 MiB;
* a tensor's name is 1 to 64 bytes of UTF-8; keys and tensor names are unique;
* a tensor has at most four dimensions (none: one value), zero is a legal size, and neither a
  dimension nor a tensor exceeds 2^63 - 1;
* its offset is a multiple of the alignment, and its last byte lies in the file. Tensors may
  overlap, and bytes after the last one are ignored.

All sizes are Python integers: nothing wraps.
"""

from __future__ import annotations

import math
from mmap import mmap
from pathlib import Path

import attrs

from umbel.gguf.types import BY_NUMBER, DType
from umbel.gguf.values import AGAIN, MAX_KEY, U32, Cursor, Metadata, Packed, Value, read_value

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_NAME = 64
MAX_SIZE = 2**63 - 1
ALIGNMENTS = [1 << n for n in range(3, 25)]
_ALIGNMENT = "general.alignment"


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
    n_tensors = cursor.u64("the number of tensors")
    metadata = _read_metadata(cursor)
    alignment = metadata.get(_ALIGNMENT, 32)
    assert isinstance(alignment, int)
    cursor.bound(n_tensors, 25, "tensors")
    relative = _read_tensors(cursor, n_tensors)
    start = -(-cursor.pos // alignment) * alignment
    tensors = {t.name: _place(cursor, t, start, alignment) for t in relative.values()}
    return Header(version, alignment, metadata, tensors)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4, "the magic number of a GGUF file")
    if magic != MAGIC:
        cursor.fail("this is not a GGUF file", MAGIC, magic)
    version = cursor.u32("the version number")
    if version & 0xFFFF == 0:
        what = "big-endian GGUF files are not supported"
        cursor.fail(what, "little-endian", "big-endian", "fetch the little-endian file")
    if version not in VERSIONS:
        cursor.fail("this version of GGUF is not supported", "2 or 3", version)
    return version


def _read_metadata(cursor: Cursor) -> Metadata:
    values: dict[str, Value | Packed] = {}
    count = cursor.u64("the number of metadata keys")
    for _ in range(cursor.bound(count, 13, "metadata keys")):
        key = cursor.name("a metadata key", MAX_KEY)
        what = f"the metadata key {key[:80]!r}"
        if key in values:
            cursor.fail(f"{what} occurs twice")
        kind = cursor.u32(f"the type of {what}")
        values[key] = value = read_value(cursor, kind, what)
        if key == _ALIGNMENT and (kind != U32 or value not in ALIGNMENTS):
            expected = f"a u32, a power of two from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}"
            cursor.fail(f"{what} has a wrong value", expected, f"{value!r:.80} of type {kind}")
    return Metadata(values)


def _read_tensors(cursor: Cursor, count: int) -> dict[str, TensorInfo]:
    """The tensor descriptions with offsets as they stand: relative to the data's start."""
    tensors: dict[str, TensorInfo] = {}
    for _ in range(count):
        name = cursor.name("a tensor name", MAX_NAME)
        what = f"the tensor {name!r}"
        if name in tensors:
            cursor.fail(f"{what} occurs twice")
        n_dims = cursor.u32(f"the number of dimensions of {what}")
        if n_dims > MAX_DIMS:
            cursor.fail(f"{what} has too many dimensions", f"at most {MAX_DIMS}", n_dims)
        dims = [cursor.u64(f"the dimensions of {what}") for _ in range(n_dims)]
        number = cursor.u32(f"the type of {what}")
        dtype = BY_NUMBER.get(number) or DType(f"type {number}", number, 1, 0)
        offset = cursor.u64(f"the offset of {what}")
        shape = tuple(reversed(dims))  # GGUF puts the contiguous axis first, NumPy last
        nbytes = _nbytes(cursor, what, shape, dtype)
        tensors[name] = TensorInfo(name, shape, dtype, offset, nbytes)
    return tensors


def _nbytes(cursor: Cursor, what: str, shape: tuple[int, ...], dtype: DType) -> int:
    row = shape[-1] if shape else 1
    if row % dtype.block:
        what = f"{what} of type {dtype.name} has rows that are no whole number of blocks"
        cursor.fail(what, f"a multiple of {dtype.block}", row)
    # A zero must not hide a monster beside it: NumPy refuses such shapes too.
    if math.prod(max(n, 1) for n in shape) * max(dtype.block_bytes, 1) > MAX_SIZE:
        cursor.fail(f"{what} is too large", f"at most {MAX_SIZE} bytes", shape)
    return math.prod(shape[:-1]) * dtype.row_bytes(row)


def _place(cursor: Cursor, tensor: TensorInfo, start: int, alignment: int) -> TensorInfo:
    what = f"the tensor {tensor.name!r}"
    if tensor.offset % alignment:
        expected = f"an offset that is a multiple of {alignment}"
        cursor.fail(f"{what} is not aligned", expected, tensor.offset)
    # A file without tensor data may end before the padding does: only offset 0 is left then.
    size, end = len(cursor.data), tensor.offset + tensor.nbytes
    if end > max(size - start, 0):
        what = f"the data of {what} ends after the file: it is truncated or malformed"
        cursor.fail(what, f"at least {start + end} bytes", f"{size} bytes", AGAIN)
    return attrs.evolve(tensor, offset=start + tensor.offset)
