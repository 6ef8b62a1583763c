"""Weight files against coremltools' own reader and writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from umbel_ane.mil.blob import CODES, BlobFile, write_blob
from umbel_ane.mil.literals import KINDS

storage: Any = pytest.importorskip("coremltools.libmilstoragepython")

CALLS = {"fp32": "float"}  # whose names are not those of MIL


def values(dtype: str, size: int) -> np.ndarray:
    kind, rng = KINDS[dtype], np.random.default_rng(size)
    if not kind.is_integer:
        return rng.standard_normal(size).astype(kind.numpy)
    return rng.integers(kind.low, kind.high, size, kind.numpy, endpoint=True)


def theirs(path: Path, arrays: list[tuple[np.ndarray, str]]) -> tuple[bytes, tuple[int, ...]]:
    writer = storage._BlobStorageWriter(str(path))
    offsets = []
    for array, dtype in arrays:
        given = array.view(np.uint16) if dtype == "fp16" else array
        offsets.append(getattr(writer, f"write_{CALLS.get(dtype, dtype)}_data")(given))
    del writer
    return path.read_bytes(), tuple(offsets)


@pytest.mark.parametrize("dtype", sorted(CODES))
@pytest.mark.parametrize("sizes", [(1,), (7, 64), (33, 32, 5)])
def test_same_bytes(tmp_path: Path, dtype: str, sizes: tuple[int, ...]) -> None:
    arrays = [(values(dtype, size), dtype) for size in sizes]
    assert write_blob(arrays) == theirs(tmp_path / "theirs.bin", arrays)


def test_same_bytes_of_all_types(tmp_path: Path) -> None:
    arrays = [(values(dtype, 11), dtype) for dtype in CODES]
    assert write_blob(arrays) == theirs(tmp_path / "theirs.bin", arrays)


@pytest.mark.parametrize("dtype", sorted(CODES))
def test_they_read_ours(tmp_path: Path, dtype: str) -> None:
    given = values(dtype, 37)
    data, (offset,) = write_blob([(given, dtype)])
    path = tmp_path / "ours.bin"
    path.write_bytes(data)
    reader = storage._BlobStorageReader(str(path))
    found = np.asarray(getattr(reader, f"read_{CALLS.get(dtype, dtype)}_data")(offset))
    if dtype == "fp16":
        found = found.view(np.float16)
    np.testing.assert_array_equal(found, given)
    np.testing.assert_array_equal(BlobFile(data).read(offset, dtype), given)
