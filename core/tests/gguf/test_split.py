"""Split models: any part opens all, and parts that do not belong are refused by name."""

from __future__ import annotations

import re

import gguf
import numpy as np
import pytest
import umbel.gguf
from umbel.errors import ModelFormatError


def name(part: int, count: int = 3) -> str:
    return f"m-{part:05}-of-{count:05}.gguf"


def part(w, index, count=3, *, tensor=None, total=3, extra=(), alignment=32):
    """One part with one tensor, whose first value is the part's index."""
    pairs = [
        w.pair("split.no", "u16", index),
        w.pair("split.count", "u16", count),
        w.pair("split.tensors.count", "i32", total),
        *extra,
    ]
    if index == 0:
        pairs.insert(0, w.pair("general.architecture", "str", "llama"))
    tensors = [w.tensor(tensor or f"t{index}", [4], 0, 0)]
    return w.file(pairs, tensors, w.floats(index, 1, 2, 3), alignment=alignment)


@pytest.fixture
def parts(w, save):
    """The paths of a good model of three parts."""
    return [save(part(w, i), name(i + 1)) for i in range(3)]


@pytest.mark.parametrize("given", range(3))
def test_any_part_opens_all(given, parts):
    """Whichever part is named, the model is whole, and its tensors know their parts."""
    with umbel.gguf.open(parts[given]) as file:
        assert parts[0] == file.path
        assert file.get("general.architecture", str) == "llama"
        assert [(t.name, t.part) for t in file.tensors.values()] == [
            ("t0", 0),
            ("t1", 1),
            ("t2", 2),
        ]
        assert [file.array(f"t{i}")[0] for i in range(3)] == [0, 1, 2]
        assert sum(p.stat().st_size for p in parts) == file.size


def test_arrays_lead_to_the_whole(parts):
    """From an array of any part to what all of them share, while the file is open and after."""
    with umbel.gguf.open(parts[0]) as file:
        arrays = [file.array(f"t{i}") for i in range(3)]
    found = []
    for base in arrays:
        while not isinstance(base, memoryview):
            base = base.base
        found.append(base.obj)
    assert all(isinstance(part, umbel.gguf.Part) for part in found)
    assert [len(part) for part in found] == [path.stat().st_size for path in parts]
    assert len({part.whole for part in found}) == 1
    assert found[0].whole.size == file.size


@pytest.mark.parametrize("given", [0, 2])
def test_missing_part(given, parts):
    """A part that is not there is named."""
    parts[1].unlink()
    with pytest.raises(ModelFormatError, match=re.escape(name(2))):
        umbel.gguf.open(parts[given])


REPLACED = {  # what the second part is replaced with
    "other number": lambda w: part(w, 2, tensor="t1"),
    "other count": lambda w: part(w, 1, 4),
    "no keys": lambda w: w.file([], [w.tensor("t1", [4], 0, 0)], bytes(16)),
    "truncated": lambda w: part(w, 1)[:-4],
    "same tensor": lambda w: part(w, 1, tensor="t0"),
    "other architecture": lambda w: part(
        w, 1, extra=[w.pair("general.architecture", "str", "gpt2")]
    ),
    "text for a number": lambda w: w.file([w.pair("split.no", "str", "1")]),
    "negative": lambda w: w.file([w.pair("split.no", "i32", -1)]),
}


@pytest.mark.parametrize("given", range(3))
@pytest.mark.parametrize("case", REPLACED)
def test_foreign_part(case, given, w, save, parts):
    """A part that does not belong to the others is refused, and the error says which file."""
    save(REPLACED[case](w), name(2))
    with pytest.raises(ModelFormatError) as caught:
        umbel.gguf.open(parts[given])
    assert name(2) in str(caught.value.where)


def test_tensors_do_not_add_up(w, save, parts):
    """The first part knows how many tensors there are in all."""
    save(part(w, 0, total=4), name(1))
    with pytest.raises(ModelFormatError, match="4 tensors"):
        umbel.gguf.open(parts[0])


@pytest.mark.parametrize(
    "wrong", ["m.gguf", name(2), name(1, 2), "m-1-of-3.gguf", name(0), "m-00001-of-00003.bin"]
)
def test_renamed_part(wrong, parts):
    """A part under another name is refused with the place that it should have."""
    parts[0].rename(parts[0].with_name(wrong))
    with pytest.raises(ModelFormatError, match=r"got: split\.no 0, split\.count 3"):
        umbel.gguf.open(parts[0].with_name(wrong))


def test_name_without_keys(w, save):
    """A file that is called part of a model but does not say so is refused."""
    with pytest.raises(ModelFormatError, match=r"got: split\.no 0, split\.count 1"):
        umbel.gguf.open(save(w.file([]), name(1)))


@pytest.mark.parametrize("number", [(0, 3), (4, 3), (1, 0)])
def test_name_that_no_part_can_have(number, w, save):
    """Such a name says nothing: a file without the keys is one of its own."""
    assert not umbel.gguf.open(save(w.file([]), name(*number))).tensors


@pytest.mark.parametrize("file_name", ["m.gguf", name(1, 1)])
@pytest.mark.parametrize("count", [0, 1])
def test_split_in_one(file_name, count, w, save):
    """A model split into one part is a plain file."""
    file = umbel.gguf.open(save(part(w, 0, count), file_name))
    assert list(file.tensors) == ["t0"]


def test_own_alignment(w, save, parts):
    """Each part is laid out by its own alignment; the first one's is the model's."""
    wide = [w.pair("general.alignment", "u32", 256)]
    save(part(w, 1, extra=wide, alignment=256), name(2))
    file = umbel.gguf.open(parts[0])
    assert file.alignment == 32
    assert file.array("t1").tolist() == [1, 1, 2, 3]


def test_written_by_the_package(tmp_path):
    """What the package's own writer splits comes together again."""
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama", split_max_tensors=2)
    arrays = {f"t{i}": np.full((2, 3), i, np.float32) for i in range(5)}
    for key, array in arrays.items():
        writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = umbel.gguf.open(tmp_path / "w-00002-of-00003.gguf")
    assert file.get("general.architecture", str) == "llama"
    assert list(arrays) == list(file.tensors)
    assert all(np.array_equal(arrays[key], file.array(key)) for key in arrays)
