"""The table of data types against the `gguf` package, which is its source, and against GGUF."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
from umbel.errors import DeviceError, GraphError
from umbel.gguf.types import (
    BY_NAME,
    BY_NUMBER,
    F16,
    F32,
    Q8_0,
    convert,
    dequantise,
    quantise,
)


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


@pytest.mark.parametrize("wanted", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_k"])
@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 256), (0, 256)])
def test_convert(name, wanted, shape):
    """As if all were decoded and encoded at once, however it is cut into pieces."""
    rng = np.random.default_rng(1)
    dtype, other = BY_NAME[name], BY_NAME[wanted]
    rows = (*shape[:-1], dtype.row_bytes(shape[-1]))
    raw = rng.integers(0, 60, rows, np.uint8)
    if dtype.numpy is not None:
        raw = raw.view(dtype.numpy)
    made = convert(raw, dtype, other)
    expected = raw if dtype is other else quantise(dequantise(raw, dtype), other)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == expected.dtype
    assert made.shape == (*shape[:-1], expected.shape[-1])


def test_convert_in_pieces(monkeypatch):
    """The last of them may be shorter."""
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    monkeypatch.setattr("umbel.gguf.types._CHECKED_AT_ONCE", 14)
    assert np.array_equal(convert(values, F32, F16), values.astype(np.float16))


@pytest.mark.parametrize(("value", "wanted"), [(65520.0, F16), (-1e9, F16), (3e7, Q8_0)])
def test_convert_refuses_what_becomes_infinite(value, wanted):
    """A value that is infinite in the file stays it; so does what is just small enough."""
    values = np.zeros((4, 32), np.float32)
    values[1, 3] = -np.inf
    values[2, 5] = 65504
    if wanted is F16:
        assert np.array_equal(convert(values, F32, wanted), values.astype(np.float16))
    else:
        values[1, 3] = 0
    values[3, 7] = value
    with pytest.raises(DeviceError, match=f"too large for {wanted}") as caught:
        convert(values, F32, wanted)
    assert caught.value.got == abs(value)
