"""The written file: metadata carried over to the byte, tensors in order and aligned."""

from __future__ import annotations

import gguf as package
import numpy as np
import pytest
from umbel import gguf
from umbel.tools.quantize import quantise


@pytest.fixture
def every_kind(tmp_path):
    """A file with a value of every type of metadata, an alignment of 64 and odd tensors."""
    path = tmp_path / "kinds.gguf"
    writer = package.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_uint32("general.file_type", 0)
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"a.{kind}", 7)
    writer.add_float32("a.float32", 1e-5)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "\u00fcmbel\0\n")
    writer.add_array("a.strings", ["\u2581a", "b", ""])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.add_uint32("split.count", 0)
    random = np.random.default_rng(0)
    for name, shape in {"blk.0.ffn_up.weight": (3, 32), "one": (1,), "b.bias": (5,)}.items():
        writer.add_tensor(name, random.standard_normal(shape, np.float32))
    writer.add_tensor("ids.weight", np.arange(64, dtype=np.int32).reshape(2, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata(every_kind, tmp_path):
    """Values, their types and their order stay, but for the three keys that must not."""
    quantise(every_kind, tmp_path / "out.gguf", "Q8_0")

    with gguf.open(every_kind) as old, gguf.open(tmp_path / "out.gguf") as new:
        own = {"general.file_type", "general.quantization_version"}
        kept = [key for key in old.metadata if key not in ("split.count", *own)]
        assert [key for key in new.metadata if key not in own] == kept
        assert [new.raw_value(key) for key in kept] == [old.raw_value(key) for key in kept]
        assert list(new.metadata).index("general.file_type") == 2  # where it was
        assert new.get("general.file_type", int) == 7
        assert new.get("general.quantization_version", int) == 2


def test_tensors(every_kind, tmp_path):
    """Order, names and shapes stay; each is aligned as in the file; the rest is untouched."""
    quantise(every_kind, tmp_path / "out.gguf", "Q8_0")

    with gguf.open(every_kind) as old, gguf.open(tmp_path / "out.gguf") as new:
        assert new.alignment == 64
        assert [(t.name, t.shape) for t in new.tensors.values()] == [
            (t.name, t.shape) for t in old.tensors.values()
        ]
        assert {t.offset % 64 for t in new.tensors.values()} == {0}
        assert [t.dtype.name for t in new.tensors.values()] == ["q8_0", "f32", "f32", "i32"]
        for name in ("one", "b.bias", "ids.weight"):
            assert new.array(name).tobytes() == old.array(name).tobytes()


def test_other_readers_take_it(every_kind, tmp_path):
    """The package reads the same."""
    quantise(every_kind, tmp_path / "out.gguf", "Q8_0")

    reader = package.GGUFReader(tmp_path / "out.gguf")
    assert reader.fields["a.strings"].contents() == ["\u2581a", "b", ""]
    assert [tuple(map(int, t.shape)) for t in reader.tensors] == [(32, 3), (1,), (5,), (32, 2)]
    assert [t.data_offset % 64 for t in reader.tensors] == [0] * 4


def test_nothing_in_it(write_gguf, tmp_path):
    """A file without tensors, and one with empty ones, come out as valid files."""
    keys = {"general.architecture": "llama"}
    none = write_gguf(tmp_path / "none.gguf", keys, {})
    empty = write_gguf(
        tmp_path / "empty.gguf", keys, {"blk.0.ffn_up.weight": np.zeros((0, 32), np.float32)}
    )

    reports = [quantise(path, tmp_path / f"out-{path.name}", "Q8_0") for path in (none, empty)]

    assert [report.types for report in reports] == [{}, {"q8_0": 1}]
    assert [report.bits for report in reports] == [0, 0]
    with gguf.open(tmp_path / "out-empty.gguf") as file:
        assert file.tensors["blk.0.ffn_up.weight"].shape == (0, 32)
