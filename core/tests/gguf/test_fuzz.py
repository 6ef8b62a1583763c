"""A good file, damaged 2,000 times: it is refused with `ModelFormatError`, or readable."""

from __future__ import annotations

import struct

import pytest
import umbel.gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf.types import BY_NUMBER

INTERESTING = [0, 1, 2, 3, 7, 8, 9, 31, 32, 255, 2**16, 2**31, 2**32 - 1, 2**32]
INTERESTING += [2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
NUMBERS = st.one_of(st.sampled_from(INTERESTING), st.integers(0, 2**64 - 1))
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["byte", "u32", "u64", "insert", "delete", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        NUMBERS,
    ),
    min_size=1,
    max_size=4,
)


def good(w) -> bytes:
    """A file with every kind of value, several types and all numbers of dimensions."""
    kinds = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64"]
    pairs = [w.pair(f"one.{kind}", kind, 1) for kind in kinds]
    pairs += [w.pair(f"many.{kind}", f"[{kind}]", [0, 1, 1]) for kind in kinds]
    pairs += [
        w.pair("general.architecture", "str", "llama"),
        w.pair("general.alignment", "u32", 32),
        w.pair("split.count", "u16", 1),
        w.pair("tokens", "[str]", ["a", "", "b\xe9"] * 5),
        w.pair("nested", "[[str]]", [["x", "y"], ["z"]]),
    ]
    tensors = [
        w.tensor("f32", [4, 3], 0, 0),
        w.tensor("q4_0", [32, 2, 1, 1], 2, 64),
        w.tensor("bf16", [5], 30, 128),
        w.tensor("q6_k", [256], 14, 160),
        w.tensor("i32", [], 26, 384),
        w.tensor("none", [32, 0], 8, 384),
    ]
    return w.file(pairs, tensors, bytes(416))


def damage(content: bytes, edits) -> bytes:
    for what, place, value in edits:
        at = int(place * len(content))
        if what == "insert":
            content = content[:at] + struct.pack("<Q", value) + content[at:]
        elif what == "delete":
            content = content[:at] + content[at + value % 64 :]
        elif what == "repeat":
            content = content[: at + value % 64] + content[at:]
        else:
            raw = struct.pack("<Q", value)[: {"byte": 1, "u32": 4, "u64": 8}[what]]
            content = content[:at] + raw + content[at + len(raw) :]
    return content


def read(path) -> str:
    """Open and touch everything; the outcome in a word."""
    try:
        file = umbel.gguf.open(path)
    except ModelFormatError as error:
        return "refused" if str(path) in str(error) else f"refused without a path: {error}"
    assert len(dict(file.metadata)) == len(file.metadata)
    for info in file.tensors.values():
        if info.dtype.number in BY_NUMBER:
            assert info.nbytes == file.array(info.name).nbytes
            file.array(info.name).tobytes()
        else:
            assert (info.name, info.dtype.number) in file.unsupported
            with pytest.raises(UnsupportedModelError):
                file.array(info.name)
    return "read"


def test_damaged(w, tmp_path):
    """Nothing but `ModelFormatError` comes out of 2,000 damaged files; both outcomes occur."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(good(w))
    assert read(path) == "read"
    outcomes = []

    @settings(
        max_examples=2000,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def run(edits):
        path.write_bytes(damage(good(w), edits))
        outcomes.append(read(path))

    run()
    assert len(outcomes) >= 2000
    assert outcomes.count("refused") > 500
    assert outcomes.count("read") > 100
    assert {"read", "refused"} == set(outcomes)


def test_each_byte(w, tmp_path):
    """Every byte of the header is changed in turn."""
    path, content = tmp_path / "damaged.gguf", good(w)
    outcomes = set()
    for at in range(len(content) - 416):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        outcomes.add(read(path))
    assert {"read", "refused"} == outcomes
