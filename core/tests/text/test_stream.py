"""Decoding one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from umbel.errors import TokenizerError
from umbel.text import StreamDecoder, Tokenizer, load_tokenizer
from umbel.text.bpe import BYTE_TO_CHAR

FAMILY = "👨‍👩‍👧‍👦é歪"
BYTES = [BYTE_TO_CHAR[b] for b in range(256)]


def stream(tokenizer: Tokenizer, ids: list[int], **kwargs: bool) -> list[str]:
    decoder = StreamDecoder(tokenizer, **kwargs)
    return [*map(decoder.push, ids), decoder.flush()]


@pytest.fixture
def byte_level(bytes_and: Callable[..., Any]) -> Tokenizer:
    return load_tokenizer(bytes_and(("<end>", 3)))


def test_characters_over_tokens(byte_level: Tokenizer) -> None:
    """Characters that come byte by byte come out whole, and none as U+FFFD."""
    ids = list(FAMILY.encode())
    pieces = stream(byte_level, ids)
    assert FAMILY == "".join(pieces) == byte_level.decode(ids)
    assert list(FAMILY) == [piece for piece in pieces if piece]


@pytest.mark.parametrize("cut", range(1, 25))
def test_end_inside_a_character(byte_level: Tokenizer, cut: int) -> None:
    """An unfinished character is at most one U+FFFD, only at the end, streamed or not."""
    ids = list(FAMILY.encode())[:cut]
    pieces = stream(byte_level, ids)
    assert "".join(pieces) == byte_level.decode(ids)
    assert "\ufffd" not in "".join(pieces[:-1])
    assert pieces[-1] in ("", "\ufffd")


def test_two_thirds_of_a_character(byte_level: Tokenizer) -> None:
    """The bytes e6 ad give one U+FFFD; a third byte would have made them a character."""
    assert stream(byte_level, [0xE6, 0xAD]) == ["", "", "\ufffd"]
    assert stream(byte_level, [0xE6, 0xAD, 0xAA]) == ["", "", "歪", ""]


@given(ids=st.lists(st.integers(0, 255), max_size=30))
def test_streamed_is_decoded(ids: list[int]) -> None:
    """Any bytes give the same text streamed and at once."""
    assert TOKENIZER.decode(ids) == "".join(stream(TOKENIZER, ids))


TOKENIZER = load_tokenizer(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": BYTES,
        "tokenizer.ggml.merges": [],
    }
)


def test_control_tokens(byte_level: Tokenizer) -> None:
    """A control token shows only where it is asked for, also inside a character."""
    ids = [0xC3, 256, 0xA9]
    assert "".join(stream(byte_level, ids)) == "é"
    assert "".join(stream(byte_level, ids, special=True)) == "\ufffd<end>\ufffd"


def test_space_prefix(vectors: Callable[..., Any]) -> None:
    """After BOS the prefix space goes; in a continuation a first space stays."""
    tokenizer = vectors("phi-3").tokenizer
    ids = tokenizer.encode("Hello world")
    assert "Hello world" == "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)
    assert " Hello world" == "".join(stream(tokenizer, ids[1:])) == tokenizer.decode(ids[1:])
    assert "Hello world Hello world" == "".join(stream(tokenizer, ids + ids))  # a BOS inside
    shown = "<s>Hello world"
    assert shown == "".join(stream(tokenizer, ids, special=True))
    assert shown == tokenizer.decode(ids, special=True)


@pytest.mark.parametrize("token", [-1, 257, 10**9])
def test_foreign_ids(byte_level: Tokenizer, token: int) -> None:
    """An id outside of the vocabulary is refused; a negative one does not count backwards."""
    with pytest.raises(TokenizerError, match="not a token id"):
        StreamDecoder(byte_level).push(token)
