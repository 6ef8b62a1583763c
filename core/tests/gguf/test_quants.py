"""Number formats against the `gguf` package, to the bit, and the search for bad values."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
import umbel.gguf
from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf import types as quants
from umbel.gguf.types import BY_NAME, F32

PLAIN = {"f64", "i8", "i16", "i32", "i64"}  # types that the package has no decoder for


def theirs(dtype):
    return gguf.GGMLQuantizationType(dtype.number)


def works(call) -> bool:
    try:
        call()
    except NotImplementedError:
        return False
    return True


def random_raw(dtype, rows=(3,), blocks=2, seed=0):
    """Random bits in the form that `array` gives, scales that are not finite among them."""
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (*rows, blocks * dtype.block_bytes), np.uint8)
    return raw if dtype.numpy is None else raw.view(dtype.numpy)


def first_bad_block(raw, dtype):
    """The block that the check names, or None."""
    try:
        quants.check("t", raw, dtype)
    except ModelFormatError as error:
        return int(error.got.split()[1])
    return None


def test_decoders_are_all_there():
    """What has a decoder here is what the package decodes, and the plain types.

    Later types than those of gguf 0.19 are refused, whether the package decodes them or not.
    """
    expected = set(PLAIN)
    for dtype in [d for d in BY_NAME.values() if d.number <= BY_NAME["q1_0"].number]:
        raw = np.zeros((1, dtype.block_bytes), np.uint8)
        if works(lambda d=dtype, r=raw: gguf.quants.dequantize(r, theirs(d))):
            expected.add(dtype.name)
    assert expected == quants.DECODABLE


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_dequantise(name, w, save):
    """A tensor of every type gives the package's values, or is refused by name (Q01, Q02)."""
    dtype = BY_NAME[name]
    raw = random_raw(dtype)
    dims = [2 * dtype.block, 3]
    file = umbel.gguf.open(
        save(w.file([], [w.tensor("t", dims, dtype.number, 0)], raw.tobytes()))
    )
    array = file.array("t")
    assert np.array_equal(raw.view(np.uint8), array.view(np.uint8))
    if name not in quants.DECODABLE:
        assert [("t", dtype.number)] == file.unsupported
        with pytest.raises(UnsupportedModelError, match=name):
            quants.dequantise(array, dtype)
        return
    with np.errstate(all="ignore"):
        expected = (
            raw.astype(np.float32)
            if name in PLAIN
            else gguf.quants.dequantize(raw, theirs(dtype))
        )
    actual = quants.dequantise(array, dtype)
    assert np.float32 == actual.dtype
    assert tuple(reversed(dims)) == actual.shape
    assert np.array_equal(expected.view(np.uint32), actual.view(np.uint32))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_quantise(name):
    """Every type is written as the package writes it, or refused, with types that will do."""
    dtype = BY_NAME[name]
    values = np.random.default_rng(1).normal(size=(2, 3, 512)).astype(np.float32)
    if not works(lambda: gguf.quants.quantize(values, theirs(dtype))):
        with pytest.raises(UnsupportedModelError, match="q8_0"):
            quants.quantise(values, dtype)
        return
    actual = quants.quantise(values, dtype)
    expected = gguf.quants.quantize(values, theirs(dtype))
    assert expected.tobytes() == actual.tobytes()
    assert actual.shape[:-1] == (2, 3)
    assert dtype.row_bytes(512) == actual[0, 0].nbytes
    assert values.shape == quants.dequantise(actual, dtype).shape


@pytest.mark.parametrize("shape", [(0, 256), (2, 0), (0, 0)])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_k"])
def test_empty(name, shape):
    """Arrays without values are decoded as any other."""
    dtype = BY_NAME[name]
    raw = np.empty((shape[0], dtype.row_bytes(shape[1])), np.uint8)
    raw = raw if dtype.numpy is None else raw.view(dtype.numpy)
    assert shape == quants.dequantise(raw, dtype).shape


@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0)])
def test_write_nothing(name, shape):
    """No rows, and rows of nothing, are written as such."""
    raw = quants.quantise(np.empty(shape, np.float32), BY_NAME[name])
    size = raw.nbytes // max(len(raw), 1)
    assert (shape[0], BY_NAME[name].row_bytes(shape[1]) * bool(shape[0])) == (len(raw), size)


def test_single_row():
    """A vector is one row, and a slice that is not contiguous decodes as its copy does."""
    dtype = BY_NAME["q4_0"]
    raw = random_raw(dtype, (4, 6))
    assert quants.dequantise(raw[0, 0], dtype).shape == (64,)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw[:, ::2].copy(), theirs(dtype))
    actual = quants.dequantise(raw[:, ::2], dtype)
    assert np.array_equal(expected.view(np.uint32), actual.view(np.uint32))


def test_too_large_for_f16():
    """A value beyond f16 becomes infinite without a warning, which the check then finds."""
    raw = quants.quantise(np.array([1.0, 1e6], np.float32), BY_NAME["f16"])
    assert first_bad_block(raw, BY_NAME["f16"]) == 1


@pytest.mark.parametrize("scale", [0x7E00, 0x7C00, 0xFC00])
@pytest.mark.parametrize("bad", [0, 5, 19_999])
def test_bad_scale(scale, bad):
    """A scale of NaN or infinity is found, with the first block that has one (Q04)."""
    dtype = BY_NAME["q4_0"]
    raw = quants.quantise(np.ones((100, 6400), np.float32), dtype)
    assert first_bad_block(raw, dtype) is None
    blocks = raw.reshape(-1, 18)
    blocks[[bad, 19_999], :2] = np.array([scale], "<u2").view(np.uint8)
    assert bad == first_bad_block(raw, dtype)
    with pytest.raises(
        ModelFormatError, match=rf"'blk\.0\.w'[\s\S]*m\.gguf[\s\S]*block {bad} "
    ):
        quants.check("blk.0.w", raw, dtype, where="m.gguf")


@pytest.mark.parametrize("name", sorted(quants.DECODABLE - {"mxfp4", "nvfp4"} - PLAIN))
def test_bad_scale_of_every_type(name):
    """Random bits hold scales that are not finite, and the first is found in every type."""
    dtype = BY_NAME[name]
    blocks = 4000 if dtype.block == 1 else 400
    raw = random_raw(dtype, (20,), blocks, seed=3)
    finite = np.isfinite(quants.dequantise(raw, dtype)).reshape(-1, dtype.block).all(axis=1)
    assert not finite.all()
    assert int(np.flatnonzero(~finite)[0]) == first_bad_block(raw, dtype)


def test_bad_value_f32():
    """One NaN among many f32 values is found at its place; integers are never bad."""
    values = np.zeros((10, 100_000), np.float32)
    values[7, 3] = np.nan
    assert first_bad_block(values, F32) == 700_003
    assert first_bad_block(np.array([-1], np.int32), BY_NAME["i32"]) is None


def test_check_is_bounded_in_memory():
    """A large tensor is decoded in pieces."""
    dtype = BY_NAME["q8_0"]
    raw = np.zeros((1000, 256 * 34), np.uint8)  # 8 M values: 32 MB as float32
    first_bad_block(raw[:1], dtype)  # imports the package
    tracemalloc.start()
    assert first_bad_block(raw, dtype) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
