"""SentencePiece's byte-pair encoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from umbel.errors import TokenizerError
from umbel.text import load_tokenizer

TOKENS = (
    ("<unk>", 2),
    ("<s>", 3),
    ("</s>", 3),
    ("▁", 1, -5.0),
    ("a", 1, -6.0),
    ("b", 1, -6.0),
    ("ab", 1, -2.0),
    ("ba", 1, -1.0),
    ("▁a", 1, -3.0),
    ("<", 1, -9.0),
    ("s", 1, -9.0),
    (">", 1, -9.0),
    ("<s", 1, -1.0),
    ("aa", 1, -2.0),
    ("\n\n", 4, 0.0),
)


def test_vectors(vectors: Callable[..., Any]) -> None:
    """The ids of llama.cpp for Phi-3's vocabulary."""
    stored = vectors("phi-3")
    found = [(text, stored.tokenizer.encode(text, bos=False)) for text, _ in stored.cases]
    assert stored.cases == found
    assert len(found) == 46


def test_decode_gives_the_text_back(vectors: Callable[..., Any]) -> None:
    """After BOS the space that encoding added is taken away, and no other."""
    stored = vectors("phi-3")
    texts = [text for text, _ in stored.cases]
    encode, decode = stored.tokenizer.encode, stored.tokenizer.decode
    assert texts == [decode(encode(text)) for text in texts]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [8]),
        ("ab", [3, 6]),
        ("bab", [3, 7, 5]),  # ba before ab: its score is higher
        ("abaa", [8, 7, 4]),
        ("aaab", [3, 13, 6]),  # equal scores: from the left
        ("", []),
        (" a", [3, 8]),
        ("a\n\na", [8, 14, 8]),  # a prefix after a special token too
    ],
)
def test_merges(tiny: Callable[..., Any], text: str, ids: list[int]) -> None:
    """Merges go by score, from the left where scores are equal, after a space prefix."""
    tokenizer = load_tokenizer(tiny("llama", *TOKENS))
    assert ids == tokenizer.encode(text, bos=False)


def test_no_space_prefix(tiny: Callable[..., Any]) -> None:
    """A model may do without the space before a text."""
    tokenizer = load_tokenizer(tiny("llama", *TOKENS, add_space_prefix=False))
    assert tokenizer.encode("ab") == [1, 6]
    assert tokenizer.decode([1, 8]) == " a"


def test_control_tokens_are_not_merged(tiny: Callable[..., Any]) -> None:
    """Though the vocabulary has its parts, <s> in a text is spelt, not BOS."""
    tokenizer = load_tokenizer(tiny("llama", *TOKENS))
    assert tokenizer.encode("<s>", bos=False) == [3, 12, 11]


def test_byte_tokens_are_not_merged(tiny: Callable[..., Any]) -> None:
    """The name of a byte in a text is no byte token."""
    tokens = ["<", "<0", "<0x", "<0x4", "<0x41", "0", "x", "4", "1", ">", ("<0x41>", 6)]
    keys = {"add_bos_token": False, "add_space_prefix": False}
    assert load_tokenizer(tiny("llama", *tokens, **keys)).encode("<0x41>") == [4, 9]


@pytest.mark.parametrize("full", [True, False])
def test_unknown_characters(tiny: Callable[..., Any], full: bool) -> None:
    """What no token covers is spelt in bytes; where bytes are missing, it is one <unk>."""
    bytes_ = [(f"<0x{b:02X}>", 6) for b in range(256 if full else 0xC4)]
    tokenizer = load_tokenizer(tiny("llama", *TOKENS, *bytes_))
    ids = tokenizer.encode("é€", bos=False)
    n = len(TOKENS)
    assert ([3, n + 0xC3, n + 0xA9] + ([n + b for b in "€".encode()] if full else [0])) == ids
    assert ("é€" if full else "é") == tokenizer.decode([1, *ids])


def test_unknown_character_without_unknown_token(tiny: Callable[..., Any]) -> None:
    """A vocabulary of one token has no <unk> to fall back on."""
    tokenizer = load_tokenizer(
        tiny("llama", ("a", 3), add_bos_token=False, add_space_prefix=False)
    )
    tokenizer.vocab.roles.pop("unk")
    with pytest.raises(TokenizerError, match="no token for a part of the text"):
        tokenizer.encode("b")


def test_tokens_across_words(tiny: Callable[..., Any]) -> None:
    """A token that goes on into the next word is found: the text is then not cut into words."""
    tokens = (*TOKENS, ("b▁", 1, -0.1), ("b▁a", 1, -0.05))
    tokenizer = load_tokenizer(tiny("llama", *tokens))
    assert [8, len(TOKENS) + 1] == tokenizer.encode("ab a", bos=False)
