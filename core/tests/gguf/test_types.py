"""The table of data types against the `gguf` package, which is its source."""

from __future__ import annotations

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


def test_numpy_types():
    """A NumPy type is as wide as its values, and quantised types have none."""
    for dtype in BY_NAME.values():
        assert dtype.numpy is None or dtype.numpy == np.dtype(dtype.numpy.str)
        assert dtype.numpy is None or dtype.block_bytes == dtype.numpy.itemsize
        assert dtype.quantised == (dtype.block > 1)
        assert (dtype.numpy is None) == (dtype.quantised or dtype.name == "bf16")


def test_row_bytes():
    """A row is a whole number of blocks or an error that says so."""
    assert BY_NAME["q4_0"].row_bytes(64) == 36
    with pytest.raises(GraphError, match="multiple of 32"):
        BY_NAME["q4_0"].row_bytes(48)
