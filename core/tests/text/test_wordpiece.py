"""WordPiece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from umbel.text import load_tokenizer

TOKENS = (
    ("[PAD]", 3), ("[UNK]", 3), ("[CLS]", 3), ("[SEP]", 3),
    "▁un", "aff", "able", "▁a", "▁!", "▁我", "▁É", "▁σ", "ς", "▁e",
)  # fmt: skip
KEYS = {
    "unknown_token_id": 1,
    "cls_token_id": 2,
    "seperator_token_id": 3,
    "padding_token_id": 0,
}


def test_vectors(vectors: Callable[..., Any]) -> None:
    """The ids of llama.cpp for BERT's vocabulary."""
    stored = vectors("bert-bge")
    encode = stored.tokenizer.encode
    found = [(text, encode(text, bos=False, eos=False)) for text, _ in stored.cases]
    assert stored.cases == found
    assert len(found) == 46


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, WORLD!", ["hello", ",", "world", "!"]),
        ("naïve Été", ["naive", "ete"]),
        ("我想in北京", ["我", "想", "in", "北", "京"]),
        ("a\tb\r\nc\u3000d\u00a0e", ["a", "b", "c", "d", "e"]),
        ("a\x00b\ufffdc\u200bd\x07", ["abcd"]),
        ("$5 a^b", ["$", "5", "a", "^", "b"]),
        ("ΑΣ", ["ασ"]),
        ("İ", ["i"]),
        ("한", ["\u1112\u1161\u11ab"]),
        ("€ ½", ["€", "½"]),
        ("\udce6a", ["a"]),
        ("  ", []),
    ],
)
def test_words(vectors: Callable[..., Any], text: str, words: list[str]) -> None:
    """Cleaned, lower case, without accents; signs and Chinese characters stand alone."""
    assert words == vectors("bert-bge").tokenizer.coder.split(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("unaffable", [4, 5, 6]),
        ("unaffabl", [1]),
        ("UN!a", [4, 8, 7]),
        ("é", [13]),
        ("a" + "b" * 100, [1]),
        ("un" + "aff" * 32, [4] + [5] * 32),
        ("un" + "aff" * 33, [1]),
        ("[SEP]", [1, 1, 1]),
    ],
)
def test_longest_match(tiny: Callable[..., Any], text: str, ids: list[int]) -> None:
    """The longest token from the left; a word with a rest or over 100 characters is [UNK]."""
    tokenizer = load_tokenizer(tiny("bert", *TOKENS, **KEYS))
    assert [2, *ids, 3] == tokenizer.encode(text)


def test_cased(tiny: Callable[..., Any]) -> None:
    """A cased model keeps case and accents, unless it says otherwise."""
    cased = {**KEYS, "normalizer.lowercase": False}
    ids = [
        load_tokenizer(tiny("bert", *TOKENS, **keys)).encode("É", bos=False, eos=False)
        for keys in (KEYS, cased, {**cased, "normalizer.strip_accents": True})
    ]
    assert ids == [[13], [10], [1]]


def test_special_tokens_parse_on_demand(tiny: Callable[..., Any]) -> None:
    """[SEP] in a text is the separator only when control tokens are asked for."""
    tokenizer = load_tokenizer(tiny("bert", *TOKENS, **KEYS))
    assert tokenizer.encode("a[SEP]un", special=True) == [2, 7, 3, 4, 3]


def test_decode(tiny: Callable[..., Any]) -> None:
    """Words are joined by spaces; the first has none."""
    tokenizer = load_tokenizer(tiny("bert", *TOKENS, **KEYS))
    assert tokenizer.decode([2, 7, 4, 5, 6, 3]) == "a unaffable"
