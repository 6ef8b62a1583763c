"""Weight files: MILBlob storage version 2, what `BLOBFILE(path, offset)` points into.

    header    64 bytes: u32 number of blobs, u32 version 2, zeros
    per blob, at a multiple of 64:
    metadata  64 bytes: u32 sentinel 0xDEADBEEF, u32 data type, u64 bytes of data, u64 where the
              data begins in the file, u64 unused bits of its last byte, zeros
    data      at a multiple of 64; the file ends with the last

An offset is that of the metadata. Values of less than a byte lie one after the other from the
lowest bit up. The layout is that of coremltools (mlmodel/src/MILBlob/Blob), and the file of one
blob that Orion writes is one of these.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO

import attrs
import numpy as np
from umbel.errors import UmbelError

from umbel_ane.mil.literals import KINDS, Kind
from umbel_ane.mil.program import Blob, Type

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
CODES = {
    "fp16": 1,
    "fp32": 2,
    "uint8": 3,
    "int8": 4,
    "int16": 6,
    "uint16": 7,
    "int4": 8,
    "uint1": 9,
    "uint2": 10,
    "uint4": 11,
    "uint3": 12,
    "uint6": 13,
    "int32": 14,
    "uint32": 15,
}
UNREAD = {5: "bf16", 16: "fp8e4m3fn", 17: "fp8e5m2"}  # NumPy has no such values
NAMES = {code: name for name, code in CODES.items()}

_HEADER = struct.Struct("<II56x")
_METADATA = struct.Struct("<IIQQQ32x")


class BlobError(UmbelError):
    """A weight file is broken, or does not hold at an offset what is asked for."""


@attrs.frozen
class Metadata:
    """What the file says of one blob."""

    dtype: str
    nbytes: int
    start: int  # of the data
    unused_bits: int  # of its last byte

    @property
    def size(self) -> int:
        """Number of values."""
        return (self.nbytes * 8 - self.unused_bits) // KINDS[self.dtype].bits


class BlobWriter:
    """Writes a weight file to `out`, which must be seekable, one array at a time.

    >>> out = io.BytesIO()
    >>> with BlobWriter(out) as blobs:
    ...     blobs.add(np.zeros(3, np.float16)), blobs.add(np.array([1, 2]), "uint4")
    (64, 192)
    """

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.count = 0
        self._begin = out.tell()
        self._at = out.write(_HEADER.pack(0, VERSION))

    def add(self, values: np.ndarray, dtype: str | None = None) -> int:
        """Writes one array; the offset to give for it. `dtype` is MIL's name of a type that
        NumPy does not have: less than a byte."""
        kind = dtype or _dtype(values)
        data, unused = _packed(values, kind)
        self._pad()
        offset = self._at
        start = offset + _METADATA.size
        self._put(_METADATA.pack(SENTINEL, CODES[kind], data.nbytes, start, unused))
        self._put(data.data)
        self.count += 1
        return offset

    def close(self) -> None:
        """Completes the file; `out` stays open, at its end."""
        self.out.seek(self._begin)
        self.out.write(_HEADER.pack(self.count, VERSION))
        self.out.seek(self._begin + self._at)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _pad(self) -> None:
        self._put(bytes(-self._at % ALIGNMENT))

    def _put(self, data: bytes | memoryview) -> None:
        self.out.write(data)
        self._at += len(data)


def write_blob(
    arrays: Iterable[np.ndarray | tuple[np.ndarray, str]],
) -> tuple[bytes, tuple[int, ...]]:
    """A whole file in memory, and the offset of each array; with a name of a type where NumPy
    has none: `(values, "uint4")`."""
    out = io.BytesIO()
    with BlobWriter(out) as writer:
        offsets = [
            writer.add(*item) if isinstance(item, tuple) else writer.add(item)
            for item in arrays
        ]
    return out.getvalue(), tuple(offsets)


class BlobFile:
    """A weight file in memory, or mapped."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        if self.data.nbytes < _HEADER.size:
            msg = "a weight file is shorter than its header"
            raise BlobError(msg, expected=f"{_HEADER.size} bytes or more", got=self.data.nbytes)
        self.count, version = _HEADER.unpack_from(self.data)
        if version != VERSION:
            msg = "a weight file has another version"
            raise BlobError(msg, where="byte 4", expected=VERSION, got=version)

    def metadata(self, offset: int) -> Metadata:
        """What lies at the offset; `BlobError` if nothing does."""
        where = f"offset {offset} of a weight file of {self.data.nbytes} bytes"
        if offset < 0 or offset + _METADATA.size > self.data.nbytes:
            msg = "the metadata of a weight lies outside of its file"
            raise BlobError(msg, where=where)
        sentinel, code, nbytes, start, unused = _METADATA.unpack_from(self.data, offset)
        if sentinel != SENTINEL:
            msg = "no weight begins at this offset"
            do = "give the offset of the metadata: 64 for the first weight of a file"
            raise BlobError(
                msg, where=where, expected="0xDEADBEEF", got=f"{sentinel:#x}", do=do
            )
        if code not in NAMES:
            msg = "a weight has a data type that cannot be read"
            expected, got = ", ".join(CODES), UNREAD.get(code, f"code {code}")
            raise BlobError(msg, where=where, expected=expected, got=got)
        if start + nbytes > self.data.nbytes:
            msg = "a weight ends outside of its file"
            got = f"bytes {start} to {start + nbytes}"
            raise BlobError(msg, where=where, got=got)
        bits = KINDS[NAMES[code]].bits
        if (unused > 7 and bits < 8) or (unused and bits >= 8) or nbytes * 8 < unused:
            msg = "a weight leaves more bits unused than its last byte has"
            raise BlobError(msg, where=where, got=f"{unused} of {nbytes} bytes")
        if (nbytes * 8 - unused) % bits:
            msg = "the size of a weight is no whole number of values"
            got = f"{nbytes} bytes, {unused} bits unused"
            raise BlobError(msg, where=where, expected=NAMES[code], got=got)
        return Metadata(NAMES[code], nbytes, start, unused)

    def read(self, offset: int, dtype: str | None = None) -> np.ndarray:
        """The values at the offset, in one axis; whole bytes are not copied, and read only."""
        found = self.metadata(offset)
        if dtype not in (None, found.dtype):
            msg = "a weight has another data type"
            raise BlobError(msg, where=f"offset {offset}", expected=dtype, got=found.dtype)
        data = np.frombuffer(self.data, np.uint8, found.nbytes, found.start)
        data.flags.writeable = False
        kind = KINDS[found.dtype]
        if kind.bits >= 8:
            return data.view(kind.numpy.newbyteorder("<"))
        return _unpacked(data, kind.bits, kind.low < 0, found.size)


def reader(
    files: Mapping[str, bytes | bytearray | memoryview],
) -> Callable[[Blob, Type], np.ndarray]:
    """Reads weights out of files that are given by their paths in the text of a program."""
    opened = {}
    for path, data in files.items():
        try:
            opened[path] = BlobFile(data)
        except BlobError as error:
            error.where = path
            raise

    def read(blob: Blob, kind: Type) -> np.ndarray:
        where = f"{blob.path}, offset {blob.offset}"
        if blob.path not in opened:
            msg = "there is no such weight file"
            raise BlobError(msg, where=where, expected=", ".join(opened) or "no weights")
        values = opened[blob.path].read(blob.offset, kind.dtype)
        if values.size != kind.size:
            msg = "a weight has another number of values"
            raise BlobError(msg, where=where, expected=kind, got=values.size)
        return values.reshape([d for d in kind.dims or () if d is not None])

    return read


def _dtype(values: np.ndarray) -> str:
    for name in CODES:
        if KINDS[name].bits >= 8 and KINDS[name].numpy == values.dtype.newbyteorder("="):
            return name
    msg = "a weight file cannot hold these values"
    raise BlobError(msg, expected=", ".join(CODES), got=values.dtype)


def _fits(values: np.ndarray, kind: Kind) -> bool:
    if not kind.is_integer:
        return bool(values.dtype.newbyteorder("=") == kind.numpy)
    if values.dtype.kind not in "iu":
        return False
    return not values.size or bool(values.min() >= kind.low and values.max() <= kind.high)


def _packed(values: np.ndarray, dtype: str) -> tuple[np.ndarray, int]:
    """The bytes of the values, and how many bits of the last are unused."""
    kind = KINDS.get(dtype)
    if kind is None or dtype not in CODES:
        msg = "a weight file cannot hold values of this type"
        raise BlobError(msg, expected=", ".join(CODES), got=dtype)
    if not _fits(values, kind):
        msg = "values do not fit into the type of a weight"
        expected = f"integers from {kind.low} to {kind.high}" if kind.is_integer else kind.numpy
        got = f"{values.dtype} from {values.min()} to {values.max()}" if values.size else None
        raise BlobError(msg, where=dtype, expected=expected, got=got or values.dtype)
    flat = np.ascontiguousarray(values).reshape(-1)
    if kind.bits >= 8:
        same = flat.astype(kind.numpy.newbyteorder("<"), copy=False)
        return same.view(np.uint8), 0
    bits = flat.astype(np.uint8)[:, None] >> np.arange(kind.bits, dtype=np.uint8) & 1
    packed = np.packbits(bits.reshape(-1), bitorder="little")
    return packed, packed.size * 8 - flat.size * kind.bits


def _unpacked(data: np.ndarray, bits: int, signed: bool, size: int) -> np.ndarray:
    every = np.unpackbits(data, count=size * bits, bitorder="little").reshape(size, bits)
    weights = 1 << np.arange(bits)
    if signed:
        weights[-1] = -weights[-1]
    values: np.ndarray = (every @ weights).astype(np.int8 if signed else np.uint8)
    return values
