"""SentencePiece's unigram model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from umbel.text import load_tokenizer

TOKENS = (
    ("<pad>", 3),
    ("</s>", 3),
    ("<unk>", 2),
    ("▁", 1, -3.0),
    ("a", 1, -3.0),
    ("b", 1, -3.0),
    ("ab", 1, -4.0),
    ("abc", 1, -20.0),
    ("▁a", 1, -3.5),
)


def test_vectors(vectors: Callable[..., Any]) -> None:
    """The ids of sentencepiece for its own test model."""
    stored = vectors("botchan-unigram")
    encode = stored.tokenizer.encode
    found = [(text, encode(text, eos=False)) for text, _ in stored.cases]
    assert stored.cases == found
    assert len(found) == 104


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ab", [6]),
        ("ba", [5, 4]),
        ("abc", [7]),  # better than "ab" and an unknown character
        ("xyz", [2]),
        ("axyb", [4, 2, 5]),
        (" a", [8]),
        ("a  b", [4, 3, 3, 5]),
        ("", []),
    ],
)
def test_best_path(tiny: Callable[..., Any], text: str, ids: list[int]) -> None:
    """The cut with the greatest sum of scores; unknown characters in a row are one token."""
    assert ids == load_tokenizer(tiny("t5", *TOKENS)).encode(text, eos=False)


@pytest.mark.parametrize(
    ("text", "prefix", "merged", "pieces"),
    [
        ("a  b ", False, False, ["a", "▁", "▁b", "▁"]),
        ("a  b ", True, False, ["▁a", "▁", "▁b", "▁"]),
        (" a  b ", False, True, ["a", "▁b"]),
        (" a  b ", True, True, ["▁a", "▁b"]),
        ("  ", True, True, []),
    ],
)
def test_spaces(
    tiny: Callable[..., Any], text: str, prefix: bool, merged: bool, pieces: list[str]
) -> None:
    """Runs of spaces shrink, and a text starts with a space, where the model says so."""
    keys = {"add_space_prefix": prefix, "remove_extra_whitespaces": merged}
    coder = load_tokenizer(tiny("t5", *TOKENS, **keys)).coder
    assert "".join(pieces) == "".join(coder.split(text))


def test_eos_and_prefix(tiny: Callable[..., Any]) -> None:
    """By itself the model adds EOS, no BOS; without BOS a text starts at its first token."""
    tokenizer = load_tokenizer(tiny("t5", *TOKENS, add_space_prefix=True))
    assert tokenizer.encode("ab") == [8, 5, 1]
    assert tokenizer.decode([8, 5, 1]) == "ab"


def test_byte_tokens(tiny: Callable[..., Any]) -> None:
    """A vocabulary with byte tokens spells what it does not know."""
    tokens = [*TOKENS, *((f"<0x{b:02X}>", 6) for b in range(256))]
    ids = load_tokenizer(tiny("t5", *tokens)).encode("aé", eos=False)
    assert [4, len(TOKENS) + 0xC3, len(TOKENS) + 0xA9] == ids


def test_user_defined(tiny: Callable[..., Any]) -> None:
    """A user-defined token is always taken whole."""
    tokenizer = load_tokenizer(tiny("t5", *TOKENS, ("abba", 4)))
    assert [4, len(TOKENS), 5] == tokenizer.encode("aabbab", eos=False)


@pytest.mark.parametrize(("score", "ids"), [(9.9, [4]), (10.1, [2, 3])])
def test_unknown_costs_ten(tiny: Callable[..., Any], score: float, ids: list[int]) -> None:
    """An unknown character costs ten more than the rarest token."""
    tokenizer = load_tokenizer(tiny("t5", *TOKENS[:3], ("ab", 1, score), ("xab", 1, -20.0)))
    assert tokenizer.encode("xab", eos=False) == ids
