"""Malformed and unusual headers: what public bug reports tell of, each rebuilt small.

The tags group the reports: G01 and G02 alignment, G03 truncation, G04 to G06 sizes, G07 counts
and lengths, G08 nesting, G09 and G10 keys, G11 types, G12 byte order, G18 names.
"""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import umbel.gguf
from umbel.errors import ModelFormatError, UnsupportedModelError


def refused(path: Any) -> ModelFormatError:
    """The error of opening, which must come within a second and without 50 MB."""
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ModelFormatError) as caught:
        umbel.gguf.open(path)
    took, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 1
    assert peak < 50_000_000
    assert str(path) in str(caught.value.where)
    return caught.value


def arch(w: Any, order: str = "<") -> bytes:
    return w.pair("general.architecture", "str", "llama", order)


def one_tensor(w: Any, dims: Any = (4,), number: int = 0, offset: int = 0, **more: Any) -> Any:
    data = more.pop("data", w.floats(1, 2, 3, 4) + bytes(16))
    return w.file([arch(w)], [w.tensor("t", dims, number, offset)], data, **more)


def aligned(w: Any, kind: str, value: Any) -> Any:
    pairs = [arch(w), w.pair("general.alignment", kind, value)]
    return w.file(pairs, [w.tensor("t", [4], 0, 0)], w.floats(1, 2, 3, 4) + bytes(16))


def lone_pair(w: Any, number: int, raw: bytes) -> Any:
    return w.file([w.raw_pair("k", number, raw)])


def nested(w: Any, depth: int) -> Any:
    inner = struct.pack("<IQB", 0, 1, 7)
    return lone_pair(w, 9, struct.pack("<IQ", 9, 1) * (depth - 1) + inner)


def wide(w: Any) -> Any:
    return w.file([arch(w)], [w.string("t") + struct.pack("<I", 0xFFFFFFFF) + bytes(64)])


def padded(w: Any) -> Any:
    """Two tensors of which the second has 2^64 - 16 bytes: padding that would give 0."""
    huge = w.tensor("b", [4, 1073741823, 1073741825], 0, 256)
    return w.file([arch(w)], [w.tensor("a", [64], 0, 0), huge], bytes(256))


def twice(w: Any) -> Any:
    tensors = [w.tensor("t", [4], 0, 0), w.tensor("t", [4], 0, 32)]
    return w.file([arch(w)], tensors, bytes(64))


BAD = {  # name: (the file, a part of what the error must say)
    "G02 alignment 0": (lambda w: aligned(w, "u32", 0), "general.alignment"),
    "G02 alignment 3": (lambda w: aligned(w, "u32", 3), "general.alignment"),
    "G02 alignment 4": (lambda w: aligned(w, "u32", 4), "general.alignment"),
    "G02 alignment 2^31": (lambda w: aligned(w, "u32", 1 << 31), "general.alignment"),
    "G02 alignment as i32": (lambda w: aligned(w, "i32", 32), "general.alignment"),
    "G02 alignment as text": (lambda w: aligned(w, "str", "32"), "general.alignment"),
    "G02 alignment as array": (lambda w: aligned(w, "[u32]", [32]), "general.alignment"),
    "G03 empty": (lambda w: b"", "truncated"),
    "G03 half of the magic": (lambda w: b"GG", "truncated"),
    "G03 magic only": (lambda w: b"GGUF", "truncated"),
    "G03 magic and version": (lambda w: b"GGUF\3\0\0\0", "truncated"),
    "G03 data cut": (lambda w: one_tensor(w, [1024]), "'t'.*truncated"),
    "G03 offset after the end": (lambda w: one_tensor(w, offset=1 << 20), "'t'.*truncated"),
    "G03 offset near 2^64": (lambda w: one_tensor(w, offset=2**64 - 32), "'t'.*truncated"),
    "G03 not a GGUF": (lambda w: w.file([arch(w)], magic=b"ggml"), "not a GGUF"),
    "G04 q4_0 wraps": (lambda w: one_tensor(w, [5124095576030431008], 2), "'t'"),
    "G04 padding wraps": (padded, "'b'.*too large"),
    "G04 elements wrap": (lambda w: one_tensor(w, [2**63 - 1, 2], 24), "'t'.*too large"),
    "G04 half a block": (lambda w: one_tensor(w, [48], 2), "'t'.*blocks"),
    "G05 zero beside 2^62": (lambda w: one_tensor(w, [0, 2**62, 4]), "'t'.*too large"),
    "G06 negative": (lambda w: one_tensor(w, [-1]), "'t'.*too large"),
    "G06 five dimensions": (lambda w: one_tensor(w, [1] * 5), "'t'.*too many dimensions"),
    "G06 2^32 - 1 dimensions": (wide, "'t'.*too many dimensions"),
    "G07 2^63 pairs": (lambda w: w.file([arch(w)], n_pairs=2**63), "metadata keys"),
    "G07 2^63 tensors": (lambda w: w.file([arch(w)], n_tensors=2**63), "number of tensors"),
    "G07 tensors wrap": (lambda w: w.file(n_tensors=0x1D1D1D1D1D1D1D1D), "number of tensors"),
    "G07 key length": (
        lambda w: w.file([struct.pack("<Q", 0xFFFFFFFFFFFF) + bytes(16)], n_pairs=1),
        "a metadata key",
    ),
    "G07 key of 64 KiB": (lambda w: w.file([w.pair("k" * 65536, "u8", 1)]), "65535 bytes"),
    "G07 string 2^63": (lambda w: lone_pair(w, 8, struct.pack("<Q", 2**63)), "'k'"),
    "G07 string 2^64-1": (lambda w: lone_pair(w, 8, struct.pack("<Q", 2**64 - 1)), "'k'"),
    "G07 array 2^63": (lambda w: lone_pair(w, 9, struct.pack("<IQ", 4, 2**63)), "'k'"),
    "G07 strings 2^63": (lambda w: lone_pair(w, 9, struct.pack("<IQ", 8, 2**63)), "'k'"),
    "G07 arrays 2^63": (lambda w: lone_pair(w, 9, struct.pack("<IQ", 9, 2**63)), "'k'"),
    "G07 element 2^63": (
        lambda w: lone_pair(w, 9, struct.pack("<IQQQ", 8, 2, 2**63, 0)),
        "'k'.*truncated",
    ),
    "G07 element 2^40": (
        lambda w: lone_pair(w, 9, struct.pack("<IQQQ", 8, 2, 2**40, 0)),
        "'k'.*truncated",
    ),
    "G07 last element": (
        lambda w: lone_pair(w, 9, struct.pack("<IQQQ", 8, 2, 0, 1)),
        "'k'.*truncated",
    ),
    "G08 3000 levels": (lambda w: nested(w, 3000), "'k'.*nested"),
    "G08 five levels": (lambda w: nested(w, 5), "'k'.*nested"),
    "G09 key twice": (
        lambda w: w.file([arch(w), w.pair("general.architecture", "str", "gpt2")]),
        "'general.architecture' occurs twice",
    ),
    "G09 tensor twice": (twice, "'t' occurs twice"),
    "G10 empty key": (lambda w: w.file([arch(w), w.pair("", "u32", 1)]), "wrong length"),
    "G10 key not UTF-8": (lambda w: w.file([w.pair(b"k\xff\xfe", "u32", 1)]), "not UTF-8"),
    "G10 bool 2": (lambda w: lone_pair(w, 7, b"\2"), "'k' is not a bool"),
    "G10 bools": (lambda w: lone_pair(w, 9, struct.pack("<IQ", 7, 2) + b"\1\3"), "'k' is not"),
    "G11 value type 99": (lambda w: lone_pair(w, 99, bytes(8)), "'k'.*unknown.*\n.*\n.*\n.*99"),
    "G11 element type 99": (
        lambda w: lone_pair(w, 9, struct.pack("<IQ", 99, 1) + bytes(8)),
        "'k'.*unknown",
    ),
    "G11 version 1": (lambda w: w.file([arch(w)], version=1), "version"),
    "G11 version 4": (lambda w: w.file([arch(w)], version=4), "version"),
    "G12 big-endian": (
        lambda w: w.file(
            [arch(w, ">")],
            [w.tensor("t", [4], 0, 0, ">")],
            w.floats(1, 2, 3, 4, order=">") + bytes(16),
            order=">",
        ),
        "big-endian",
    ),
    "G12 big-endian version only": (
        lambda w: b"GGUF" + struct.pack(">I", 3) + w.file([arch(w)])[8:],
        "big-endian",
    ),
    "offset 7": (lambda w: one_tensor(w, offset=7, data=bytes(64)), "'t' is not aligned"),
    "offset 32 of 64": (
        lambda w: w.file(
            [w.pair("general.alignment", "u32", 64)],
            [w.tensor("t", [4], 0, 32)],
            bytes(128),
            alignment=64,
        ),
        "'t' is not aligned",
    ),
    "G18 tensor name of 65": (
        lambda w: w.file([arch(w)], [w.tensor("n" * 65, [4], 0, 0)], bytes(32)),
        "64 bytes",
    ),
    "G18 empty tensor name": (
        lambda w: w.file([arch(w)], [w.tensor("", [4], 0, 0)], bytes(32)),
        "64 bytes",
    ),
    "G18 tensor name not UTF-8": (
        lambda w: w.file([arch(w)], [w.tensor(b"\xff", [4], 0, 0)], bytes(32)),
        "not UTF-8",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case, w, save):
    """A malformed file is one typed error that names what is wrong, at once."""
    make, says = BAD[case]
    assert re.search(says, str(refused(save(make(w)))))


def test_cut_anywhere(w, save):
    """A good file cut at any byte is refused, unless only the padding at its end is gone."""
    good = one_tensor(w)
    needed = len(good) - 16
    for n in range(len(good)):
        path = save(good[:n])
        if n < needed:
            refused(path)
        else:
            assert umbel.gguf.open(path).array("t").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096, 1 << 20])
@pytest.mark.parametrize("end", ["padded", "bare", "stray"])
def test_alignment(alignment, end, w, save):
    """Any valid alignment moves the data (G01), and bytes after the data do not matter."""
    step = max(alignment, 16)
    data = w.floats(1, 2, 3, 4).ljust(step, b"\0") + w.floats(5, 6, 7, 8)
    data += {"padded": bytes(-16 % step), "bare": b"", "stray": b"strayed"}[end]
    tensors = [w.tensor("a", [4], 0, 0), w.tensor("b", [2, 2], 0, step)]
    pairs = [arch(w), w.pair("general.alignment", "u32", alignment)]
    file = umbel.gguf.open(save(w.file(pairs, tensors, data, alignment=alignment)))
    assert alignment == file.alignment
    assert file.array("a").tolist() == [1, 2, 3, 4]
    assert file.array("b").tolist() == [[5, 6], [7, 8]]


@pytest.mark.parametrize("version", [2, 3])
def test_versions(version, w, save):
    """Versions 2 and 3 have the same layout."""
    file = umbel.gguf.open(save(one_tensor(w, version=version)))
    assert version == file.version
    assert file.array("t").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("padding", [1, 32, 4096])
@pytest.mark.parametrize(
    ("number", "dims", "shape"),
    [(0, [4, 0], (0, 4)), (2, [32, 0], (0, 18)), (30, [0], (0,)), (8, [0, 3], (3, 0))],
)
def test_zero_sized(number, dims, shape, padding, w, save):
    """A dimension may be zero (G05), whether or not the file goes on after its header."""
    tensors = [w.tensor("t.weight", dims, number, 0)]
    file = umbel.gguf.open(save(w.file([arch(w)], tensors, alignment=padding)))
    assert file.tensors["t.weight"].nbytes == 0
    assert tuple(reversed(dims)) == file.tensors["t.weight"].shape
    assert shape == file.array("t.weight").shape


def test_zero_sized_still_in_the_file(w, save):
    """A tensor without data may not point after the file either."""
    assert "'t'" in refused(save(one_tensor(w, [0], offset=1 << 20))).what


def test_no_dimensions(w, save):
    """A tensor without dimensions is one value."""
    file = umbel.gguf.open(save(one_tensor(w, [])))
    assert file.tensors["t"].shape == ()
    assert np.float32(1) == file.array("t")[()]


def test_nested_arrays(w, save):
    """Arrays of arrays keep their structure up to the depth limit (G08)."""
    deep = umbel.gguf.open(save(nested(w, 4))).metadata["k"]
    pair = w.pair("k", "[[i32]]", [[1, 2], [-3]])
    assert deep == [[[[7]]]]
    assert umbel.gguf.open(save(w.file([pair]))).metadata["k"] == [[1, 2], [-3]]


def test_undecodable_bytes_are_kept(w, save):
    """Strings that are not UTF-8 keep their bytes (G10), single or in a vocabulary."""
    pieces = [b"\xe6\xad", "é".encode(), b"", b"\xff\xfe"]
    pairs = [w.pair("one", "str", pieces[0]), w.pair("all", "[str]", pieces)]
    metadata = umbel.gguf.open(save(w.file(pairs))).metadata
    assert pieces[0] == metadata["one"].encode("utf-8", "surrogateescape")
    assert pieces == [piece.encode("utf-8", "surrogateescape") for piece in metadata["all"]]


def test_longest_names(w, save):
    """A key of 65,535 bytes and a tensor name of 64 bytes are within the rules (G18)."""
    key, name = "k" * 65_535, "é" * 32
    file = umbel.gguf.open(
        save(w.file([w.pair(key, "u8", 1)], [w.tensor(name, [4], 0, 0)], bytes(32)))
    )
    assert file.metadata[key] == 1
    assert file.array(name).shape == (4,)


def test_empty_array(w, save):
    """An empty array is an empty list (G18)."""
    file = umbel.gguf.open(save(w.file([w.pair("tokenizer.ggml.merges", "[str]", [])])))
    assert file.get("tokenizer.ggml.merges", list) == []


@pytest.mark.parametrize("number", [4, 31, 999, 2**32 - 1])
def test_unknown_type(number, w, save):
    """A file with a tensor of an unknown type opens; using the tensor is refused (G11)."""
    tensors = [w.tensor("good", [4], 0, 0), w.tensor("odd", [32], number, 32)]
    data = w.floats(1, 2, 3, 4) + bytes(48)
    file = umbel.gguf.open(save(w.file([arch(w)], tensors, data)))
    assert file.metadata["general.architecture"] == "llama"
    assert [("odd", number)] == file.unsupported
    assert file.tensors["odd"].shape == (32,)
    assert file.array("good").tolist() == [1, 2, 3, 4]
    with pytest.raises(UnsupportedModelError, match=rf"'odd'[\s\S]*{number}"):
        file.array("odd")


def test_unsupported_lists_all(w, save):
    """Types that have a size but no decoder are listed too, all, in file order (Q02)."""
    tensors = [
        w.tensor("a", [256], 15, 0),
        w.tensor("b", [4], 0, 320),
        w.tensor("c", [128], 41, 352),
        w.tensor("d", [4], 999, 384),
        w.tensor("e", [32], 9, 416),
    ]
    file = umbel.gguf.open(save(w.file([arch(w)], tensors, bytes(480))))
    assert file.unsupported == [("a", 15), ("c", 41), ("d", 999), ("e", 9)]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"a" * n for n in (1, 127, 128, 255)],
        [
            b"\xe6",
            b"a" * 0xAD,
            b"\xad",
            b"b" * 0xAD,
        ],  # lengths that look like parts of characters
        [b"a", b"b" * 256, b"c" * 257, b"d"],
        [b"a\0", b"\0b", bytes(7), bytes(20), b"c"],
        [b"a", b"", b"", b"b", b""],
        [b"\0" + b"a" * 256, b"b"],
    ],
)
def test_strings_of_all_lengths(w, save, pieces):
    """Arrays of strings read the same by the quick way for short ones and by the other."""
    value = umbel.gguf.open(save(w.file([w.pair("k", "[str]", pieces)]))).metadata["k"]
    assert value == [piece.decode("utf-8", "surrogateescape") for piece in pieces]
