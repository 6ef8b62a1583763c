"""`umbel inspect`: the metadata of any GGUF file."""

from __future__ import annotations

import json
import struct

import pytest


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def strange(tmp_path):
    """A file of an unknown architecture, with a tensor of an unknown type and odd values."""
    values = [
        (b"general.architecture", 8, string(b"martian")),
        (b"odd.text", 8, string(b"\x1b[31m red \xff")),
        (b"odd.number", 6, struct.pack("<f", float("nan"))),
        (b"odd.list", 9, struct.pack("<IQ", 5, 100) + struct.pack("<100i", *range(100))),
        (b"odd.long", 8, string(b"x" * 500)),
    ]
    data = struct.pack("<4sIQQ", b"GGUF", 3, 2, len(values))
    for key, kind, raw in values:
        data += string(key) + struct.pack("<I", kind) + raw
    data += string(b"known") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0)
    data += string(b"unknown") + struct.pack("<IQIQ", 1, 4, 999, 32)
    data += b"\0" * (-len(data) % 32) + b"\0" * 64
    path = tmp_path / "strange.gguf"
    path.write_bytes(data)
    return str(path)


def test_text(umbel, strange):
    """Every key is there, long values are cut, and nothing reaches the terminal unescaped."""
    done = umbel("inspect", strange, "--tensors")

    assert (done.code, done.err) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert rows["general.architecture"] == "'martian'"
    assert rows["odd.list"] == "[0, 1, 2, 3, 4, 5, ...] (100 values)"
    assert rows["odd.long"].endswith("... (502 characters)")
    assert rows["parameters"] == "10"
    assert "\x1b" not in done.out
    assert "(2, 3)" in done.out
    assert "'unknown'" in done.out


def test_json(umbel, strange):
    """JSON holds everything in full."""
    facts = json.loads(umbel("inspect", strange, "--json", "--tensors").out)

    assert list(range(100)) == facts["metadata"]["odd.list"]
    assert facts["metadata"]["odd.long"] == "x" * 500
    assert facts["metadata"]["odd.number"] == "NaN"
    assert [tensor["name"] for tensor in facts["tensors"]] == ["known", "unknown"]
    assert facts["tensors"][0]["shape"] == [2, 3]
    assert facts["types"] == {"f32": 1, "type 999": 1}


def test_real_file(umbel, story):
    """Sizes of a file that runs; without --tensors none is listed."""
    facts = json.loads(umbel("inspect", story, "--json").out)

    assert (facts["parameters"], facts["tensors"]) == (260032, [])
    assert len(facts["metadata"]["tokenizer.ggml.tokens"]) == 512
