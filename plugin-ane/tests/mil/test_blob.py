"""Weight files."""

from __future__ import annotations

import contextlib
import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from umbel_ane.mil.blob import CODES, BlobError, BlobFile, BlobWriter, reader, write_blob
from umbel_ane.mil.literals import KINDS
from umbel_ane.mil.program import Blob, Type


@st.composite
def weights(draw: st.DrawFn) -> tuple[np.ndarray, str]:
    dtype = draw(st.sampled_from(sorted(CODES)))
    kind = KINDS[dtype]
    one = (
        st.integers(kind.low, kind.high) if kind.is_integer else st.floats(width=kind.bits)  # type: ignore[arg-type]
    )
    return draw(arrays.arrays(kind.numpy, st.integers(0, 70), elements=one)), dtype


@given(st.lists(weights(), max_size=4))
def test_round_trip(given_: list[tuple[np.ndarray, str]]) -> None:
    data, offsets = write_blob(given_)
    file = BlobFile(data)
    assert file.count == len(given_)
    for (values, dtype), offset in zip(given_, offsets, strict=True):
        assert offset % 64 == 0
        found = file.read(offset, dtype)
        np.testing.assert_array_equal(found, values)
        assert not found.flags.writeable or KINDS[dtype].bits < 8


def test_layout() -> None:
    """As the format says: header, metadata, data, each at a multiple of 64."""
    data, offsets = write_blob([np.array([1.5, -2], np.float16), np.arange(40, dtype=np.int32)])
    assert offsets == (64, 192)
    assert struct.unpack_from("<II", data) == (2, 2)
    assert struct.unpack_from("<IIQQQ", data, 64) == (0xDEADBEEF, 1, 4, 128, 0)
    assert data[128:132] == bytes.fromhex("003e00c0")
    assert struct.unpack_from("<IIQQQ", data, 192) == (0xDEADBEEF, 14, 160, 256, 0)
    assert len(data) == 256 + 160


def test_less_than_a_byte() -> None:
    """From the lowest bit up; the last byte may have bits to spare."""
    data, (four, three) = write_blob(
        [(np.array([-1, 7, -8]), "int4"), (np.array([1, 2, 5, 7]), "uint3")]
    )
    assert data[128:130] == bytes([0x7F, 0x08])
    assert struct.unpack_from("<Q", data, 64 + 24) == (4,)
    assert data[three + 64 : three + 66] == bytes([0b01_010_001, 0b111_1])
    assert BlobFile(data).read(four).tolist() == [-1, 7, -8]
    assert BlobFile(data).read(three).tolist() == [1, 2, 5, 7]


def orion(values: np.ndarray) -> bytes:
    """One weight, as Orion writes it."""
    header = bytearray(128)
    header[0], header[4], header[64:68], header[68] = 1, 2, b"\xef\xbe\xad\xde", 1
    struct.pack_into("<I", header, 72, values.nbytes)
    struct.pack_into("<I", header, 80, 128)
    return bytes(header) + values.tobytes()


def test_orion() -> None:
    values = np.arange(5, dtype=np.float16)
    data = orion(values)
    np.testing.assert_array_equal(BlobFile(data).read(64, "fp16"), values)
    ours, offsets = write_blob([values])
    assert offsets == (64,)
    assert ours == data


def test_stream() -> None:
    """A file may begin where another thing ends, and arrays are not kept."""
    out = io.BytesIO(b"before")
    out.seek(6)
    with BlobWriter(out) as writer:
        offsets = [writer.add(np.full(100, i, np.float32)) for i in range(3)]
    assert out.tell() == len(out.getvalue())
    assert out.getvalue()[:6] == b"before"
    whole, same = write_blob(np.full(100, i, np.float32) for i in range(3))
    assert (out.getvalue()[6:], tuple(offsets)) == (whole, same)


def test_big_endian_and_strided() -> None:
    values = np.arange(12, dtype=">f2").reshape(3, 4).T
    data, (offset,) = write_blob([values])
    assert BlobFile(data).read(offset).tolist() == values.ravel().tolist()


@pytest.mark.parametrize(
    ("values", "dtype", "what"),
    [
        (np.zeros(2, np.float64), None, "cannot hold these values"),
        (np.zeros(2, bool), None, "cannot hold these values"),
        (np.zeros(2, np.float32), "fp16", "do not fit"),
        (np.array([16]), "uint4", "do not fit"),
        (np.array([-1]), "uint1", "do not fit"),
        (np.array([1.5]), "int8", "do not fit"),
        (np.zeros(2, np.uint16), "bf16", "of this type"),
    ],
)
def test_refused_values(values: np.ndarray, dtype: str | None, what: str) -> None:
    with pytest.raises(BlobError, match=what):
        BlobWriter(io.BytesIO()).add(values, dtype)


def broken(at: int, form: str, value: int) -> bytes:
    data = bytearray(write_blob([np.arange(8, dtype=np.float16)])[0])
    struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "offset", "dtype", "what"),
    [
        (b"", 64, None, "shorter than its header"),
        (broken(4, "<I", 1), 64, None, "another version"),
        (broken(64, "<I", 1), 64, None, "no weight begins"),
        (broken(68, "<I", 5), 64, None, "data type that cannot be read"),
        (broken(68, "<I", 99), 64, None, "data type that cannot be read"),
        (broken(72, "<Q", 1 << 63), 64, None, "ends outside"),
        (broken(80, "<Q", 1 << 63), 64, None, "ends outside"),
        (broken(72, "<Q", 15), 64, None, "whole number of values"),
        (broken(88, "<Q", 4), 64, None, "bits unused"),
        (broken(0, "<I", 1), 0, None, "no weight begins"),
        (broken(0, "<I", 1) + bytes(48), 128, None, "no weight begins"),
        (broken(0, "<I", 1), 160, None, "lies outside"),
        (broken(0, "<I", 1), -1, None, "lies outside"),
        (broken(0, "<I", 1), 64, "fp32", "another data type"),
        (broken(0, "<I", 1)[:140], 64, None, "ends outside"),
    ],
)
def test_refused_files(data: bytes, offset: int, dtype: str | None, what: str) -> None:
    with pytest.raises(BlobError, match=what):
        BlobFile(data).read(offset, dtype)


@given(weights(), st.data())
def test_mutated(weight: tuple[np.ndarray, str], data: st.DataObject) -> None:
    """Any byte may be another: a value or `BlobError`."""
    file = bytearray(write_blob([weight])[0])
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(file)))
    offset = data.draw(st.sampled_from((64, 0, 128, 192, 2**64 - 1)))
    for given_ in (file, file[:cut]):
        with contextlib.suppress(BlobError):
            assert BlobFile(given_).read(offset).ndim == 1


def test_reader() -> None:
    data, (offset,) = write_blob([np.arange(6, dtype=np.float16)])
    read = reader({"@model_path/w.bin": data})
    found = read(Blob("@model_path/w.bin", offset), Type("fp16", (2, 3)))
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BlobError, match="no such weight file"):
        read(Blob("@model_path/other.bin", offset), Type("fp16", (2, 3)))
    with pytest.raises(BlobError, match="another number of values"):
        read(Blob("@model_path/w.bin", offset), Type("fp16", (2, 2)))
