"""The table of data types against the `gguf` package, which is its source, and against GGUF."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME, BY_NUMBER


def test_table():
    """Names, numbers and block sizes are the package's, all of them and no others."""
    expected = {
        kind.name.lower(): (kind.value, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
    }
    assert expected == {d.name: (d.number, d.block, d.block_bytes) for d in BY_NAME.values()}
    assert {value[0] for value in expected.values()} == set(BY_NUMBER)


PINNED = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
    "iq4_nl": (20, 32, 18),
    "i32": (26, 1, 4),
    "bf16": (30, 1, 2),
    "mxfp4": (39, 32, 17),
}


@pytest.mark.parametrize("name", PINNED)
def test_pinned(name):
    """Files exist: what a number means never changes, whichever package is installed."""
    dtype = BY_NAME[name]
    assert PINNED[name] == (dtype.number, dtype.block, dtype.block_bytes)


def test_the_package_is_not_imported():
    """The constants come without the package, and its reader, which take much longer."""
    code = "import sys, umbel.gguf.types; assert 'gguf' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numpy_types():
    """A NumPy type is as wide as its values, and quantised types have none."""
    for dtype in BY_NAME.values():
        assert dtype.numpy is None or dtype.numpy == np.dtype(dtype.numpy.str)
        assert dtype.numpy is None or dtype.block_bytes == dtype.numpy.itemsize
        assert dtype.quantised == (dtype.block > 1)
    plain = {dtype.name for dtype in BY_NAME.values() if dtype.numpy is not None}
    assert plain == {"f16", "f32", "f64", "i8", "i16", "i32", "i64"}
    assert not any(BY_NAME[name].quantised for name in (*plain, "bf16"))


def test_row_bytes():
    """A row is a whole number of blocks or an error that says so."""
    assert BY_NAME["q4_0"].row_bytes(64) == 36
    with pytest.raises(GraphError, match="multiple of 32"):
        BY_NAME["q4_0"].row_bytes(48)
