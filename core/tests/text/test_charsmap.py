"""SentencePiece's normalisation rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from umbel.errors import TokenizerError
from umbel.text.unigram import CharsMap


@pytest.fixture
def nfkc(vectors: Callable[..., Any]) -> CharsMap:
    """The rules of NFKC as sentencepiece compiles them."""
    charsmap = vectors("botchan-unigram").tokenizer.coder.charsmap
    assert isinstance(charsmap, CharsMap)
    return charsmap


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (b"plain", "plain"),
        ("ＡＢＣ１２３".encode(), "ABC123"),
        ("½ ﬁ ㌔".encode(), "1⁄2 fi キロ"),
        ("e\u0301".encode(), "\u00e9"),
        ("カ\u3099x".encode(), "ガx"),
        ("🦙".encode(), "🦙"),
        (b"a\xffb\xe6\xad", "a\ufffdb\ufffd"),
        (b"", ""),
        (b"a\0b", "a\0b"),
    ],
)
def test_normalise(nfkc: CharsMap, text: bytes, normal: str) -> None:
    """The longest rule applies; what has none stays; what is not UTF-8 becomes U+FFFD."""
    assert normal == nfkc.normalise(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\4\0\0",
        b"\0\0\0\0ab\0",
        b"\x06\0\0\0abcdef\0",
        b"\x08\0\0\0abcd\0",
        b"\xff\xff\xff\xffabcd\0",
        b"\4\0\0\0abcd",
        b"\4\0\0\0abcdno end",
    ],
)
def test_malformed(data: bytes) -> None:
    """A trie that does not fit, or a last replacement without an end, is refused."""
    with pytest.raises(TokenizerError, match="malformed"):
        CharsMap.parse(data, "x.gguf")


def test_pointing_outside() -> None:
    """Rules that lead out of the trie are an error, not a wrong or endless search."""
    broken = CharsMap.parse(b"\4\0\0\0" + (5000 << 10).to_bytes(4, "little") + b"a\0", "x.gguf")
    with pytest.raises(TokenizerError, match="outside of themselves"):
        broken.normalise(b"a")


def test_zero_byte_ends_a_match() -> None:
    """A value must not be read as the node of a zero byte, which the text may hold."""
    units = [0] * 512
    units[0] = 256 << 10
    units[256 ^ ord("a")] = ord("a") | 1 << 8 | 1 << 10
    units[256 ^ ord("a") ^ 1] = 256  # the value: where the replacement stands
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    charsmap = CharsMap.parse(len(trie).to_bytes(4, "little") + trie + b"." * 256 + b"bc\0", "")
    assert charsmap.normalise(b"xa\0a") == "xbc\0bc"
