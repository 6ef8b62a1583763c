"""An open file: what the `gguf` package wrote is read back, lookups, arrays and closing."""

from __future__ import annotations

import gc
import os
import weakref

import gguf
import numpy as np
import pytest
import umbel.gguf
from umbel.errors import ModelFormatError, UmbelError
from umbel.gguf.types import BY_NAME

ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f16": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
    "f64": np.array([1e300, -2.5]),
    "i8": np.array([[-128, 127]], np.int8),
    "i16": np.array([-(2**15)], np.int16),
    "i32": np.array([[[[1, -2]]]], np.int32),
    "i64": np.array([2**62], np.int64),
}
VALUES = {  # key: (the package's method, value)
    "t.u8": ("add_uint8", 255),
    "t.i8": ("add_int8", -128),
    "t.u16": ("add_uint16", 65535),
    "t.i16": ("add_int16", -32768),
    "t.u32": ("add_uint32", 2**32 - 1),
    "t.i32": ("add_int32", -(2**31)),
    "t.u64": ("add_uint64", 2**64 - 1),
    "t.i64": ("add_int64", -(2**63)),
    "t.f32": ("add_float32", 0.5),
    "t.f64": ("add_float64", 0.1),
    "t.yes": ("add_bool", True),
    "t.text": ("add_string", "zwölf 龍"),
    "t.ints": ("add_array", [1, -2, 3]),
    "t.floats": ("add_array", [0.5, -0.25]),
    "t.flags": ("add_array", [True, False]),
    "t.texts": ("add_array", ["a", "", "é"]),
}


@pytest.fixture
def written(tmp_path):
    """A file by the package's own writer, with every kind of value and plain type."""
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (method, value) in VALUES.items():
        getattr(writer, method)(key, value)
    for name, array in ARRAYS.items():
        writer.add_tensor(name, array)
    rows = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.BF16):
        raw = gguf.quants.quantize(rows, kind)
        writer.add_tensor(kind.name.lower(), raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("key", VALUES)
def test_values(key, written):
    """Each kind of value comes back as the Python value it was."""
    actual = umbel.gguf.open(written).metadata[key]
    assert VALUES[key][1] == actual
    assert type(VALUES[key][1]) is type(actual)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name, written):
    """Plain types are typed arrays in NumPy order, read-only."""
    file = umbel.gguf.open(written)
    actual = file.array(name)
    assert np.array_equal(ARRAYS[name], actual)
    assert (ARRAYS[name].dtype, ARRAYS[name].shape) == (actual.dtype, actual.shape)
    assert (name, ARRAYS[name].nbytes) == (
        file.tensors[name].dtype.name,
        file.tensors[name].nbytes,
    )
    assert not actual.flags.writeable


@pytest.mark.parametrize(("name", "shape"), [("q8_0", (2, 68)), ("bf16", (2, 128))])
def test_raw_arrays(name, shape, written):
    """Quantised types and bf16 are rows of bytes, the same as the package's reader shows."""
    file = umbel.gguf.open(written)
    theirs = next(t for t in gguf.GGUFReader(written).tensors if t.name == name)
    assert shape == file.array(name).shape
    assert np.array_equal(theirs.data, file.array(name))
    assert file.tensors[name].shape == (2, 64)
    assert BY_NAME[name] is file.tensors[name].dtype


def test_attributes(written):
    """Path, size, and tensors in file order with offsets from the file's start."""
    file = umbel.gguf.open(os.fspath(written))
    theirs = gguf.GGUFReader(written).tensors
    assert (written, written.stat().st_size) == (file.path, file.size)
    assert [(t.name, t.data_offset) for t in theirs] == [
        (t.name, t.offset) for t in file.tensors.values()
    ]
    assert file.unsupported == []


def test_metadata_is_a_mapping(written):
    """Keys are in file order, and an array is decoded once."""
    metadata = umbel.gguf.open(written).metadata
    assert ["general.architecture", *VALUES] == list(metadata)
    assert len(VALUES) + 1 == len(metadata)
    assert "t.texts" in metadata
    assert "absent" not in metadata
    assert metadata["t.texts"] is metadata["t.texts"]


def test_close(written):
    """Closing lets the mapping go; an array that still lives keeps it and stays right."""
    with umbel.gguf.open(written) as file:
        array = file.array("f32")
        mapping = weakref.ref(file._maps[0])
    assert np.array_equal(ARRAYS["f32"], array)
    assert file.metadata["t.texts"] == ["a", "", "é"]
    gc.collect()
    assert mapping() is not None
    del array
    gc.collect()
    assert mapping() is None
    with pytest.raises(UmbelError, match="closed"):
        file.array("f32")
    file.close()


def test_missing_tensor(written):
    """A tensor that is not there is named."""
    with pytest.raises(ModelFormatError, match=r"'output\.weight' is missing"):
        umbel.gguf.open(written).array("output.weight")


@pytest.mark.parametrize(
    ("key", "kind", "expected"),
    [
        ("t.u32", int, 2**32 - 1),
        ("t.f32", float, 0.5),
        ("t.u8", float, 255.0),
        ("t.yes", bool, True),
        ("t.text", str, "zwölf 龍"),
        ("t.ints", list, [1, -2, 3]),
        ("t.floats", list, [0.5, -0.25]),
        ("t.texts", list, ["a", "", "é"]),
    ],
)
def test_get(key, kind, expected, written):
    """A value of the kind asked for is given, an int also where a float is asked for."""
    actual = umbel.gguf.open(written).get(key, kind)
    assert expected == actual
    assert type(expected) is type(actual)


@pytest.mark.parametrize(
    ("key", "kind", "got"),
    [
        ("t.f32", int, "float 0.5"),
        ("t.yes", int, "bool True"),
        ("t.yes", float, "bool True"),
        ("t.u8", bool, "int 255"),
        ("t.ints", int, "list"),
        ("t.u8", list, "int 255"),
        ("t.text", list, "str"),
    ],
)
@pytest.mark.parametrize("default", [(), (None,)])
def test_get_wrong_type(key, kind, got, default, written):
    """A value of another kind is refused, default or not, with key, expected and got."""
    with pytest.raises(ModelFormatError, match=f"'{key}' has a wrong type") as caught:
        umbel.gguf.open(written).get(key, kind, *default)
    assert caught.value.expected.startswith(f"{key}: ")
    assert caught.value.got.startswith(got)


def test_get_missing(written):
    """A missing key gives the default, or without one an error with the full key (G15)."""
    file = umbel.gguf.open(written)
    assert file.get("llama.rope.freq_base", float, 10000.0) == 10000.0
    assert file.get("llama.rope.freq_base", float, None) is None
    with pytest.raises(ModelFormatError, match=r"'llama\.block_count' is missing") as caught:
        file.get("llama.block_count", int)
    assert caught.value.expected == "llama.block_count: int"


@pytest.mark.parametrize("name", ["absent.gguf", "folder", "pipe", "nul\0", "x" * 300])
def test_unreadable(name, tmp_path):
    """What is no readable regular file is one typed error too, and a pipe does not block."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match=r"cannot be read|not a regular file"):
        umbel.gguf.open(tmp_path / name)


def test_raw_values(w, save):
    """A value can be had as it stands in the file, with the number of its type before it."""
    pairs = [w.pair("a", "u16", 7), w.pair("b", "[str]", ["x", "yz"]), w.pair("c", "f64", 0.5)]
    with umbel.gguf.open(save(w.file(pairs))) as file:
        values = [w.string(key) + file.raw_value(key) for key in file.metadata]
    assert values == pairs
    with pytest.raises(UmbelError, match="closed"):
        file.raw_value("a")
