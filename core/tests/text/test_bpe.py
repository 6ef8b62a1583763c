"""Byte-pair encoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from umbel.errors import TokenizerError
from umbel.text import load_tokenizer
from umbel.text.bpe import BYTE_TO_CHAR, merge


def naive(symbols: list[str], ranks: dict[str, int]) -> list[str]:
    """The definition: join the pair of lowest rank, the leftmost of several, until none is."""
    symbols = [*symbols]
    while True:
        joined = [a + b for a, b in pairwise(symbols)]
        pairs = [(ranks[text], i) for i, text in enumerate(joined) if text in ranks]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [joined[i]]


@given(
    text=st.text("ab", min_size=1, max_size=40),
    ranks=st.dictionaries(st.text("ab", min_size=2, max_size=5), st.integers(0, 5)),
)
def test_merge_is_the_definition(text: str, ranks: dict[str, int]) -> None:
    """The heap finds what searching all pairs anew finds, ties between equal ranks included."""
    assert naive(list(text), ranks) == merge(list(text), lambda a, b: ranks.get(a + b))


def test_merge_takes_n_log_n() -> None:
    """One piece of 100,000 symbols whose pairs merge in many rounds is done in 2 s."""
    ranks = {"a" * 2**k: k for k in range(1, 12)}
    start = time.process_time()
    merged = merge(["a"] * 100_000, lambda a, b: ranks.get(a + b))
    assert sum(map(len, merged)) == 100_000
    assert len(merged) == 52
    assert time.process_time() - start < 2


def test_byte_table() -> None:
    """Every byte has a character of its own; printable ASCII stands for itself."""
    assert (
        len(set(BYTE_TO_CHAR.values())),
        BYTE_TO_CHAR[ord("a")],
        BYTE_TO_CHAR[ord(" ")],
        BYTE_TO_CHAR[ord("\n")],
    ) == (256, "a", "Ġ", "Ċ")


def test_merge_order(bytes_and: Callable[..., Any]) -> None:
    """The first merge of the list goes first, wherever in the word."""
    tokenizer = load_tokenizer(bytes_and("ab", "bc", merges=["b c", "a b"]))
    assert [ord("a"), 257] == tokenizer.encode("abc")


def test_repeated_merge(bytes_and: Callable[..., Any]) -> None:
    """Of equal merges the first counts, and of equal tokens too."""
    tokenizer = load_tokenizer(bytes_and("ab", "bc", "ab", merges=["a b", "b c", "a b"]))
    assert [256, ord("c")] == tokenizer.encode("abc")


def test_merged_text_that_is_no_token(bytes_and: Callable[..., Any]) -> None:
    """A merge whose result the vocabulary lacks falls back to the bytes of its text."""
    tokenizer = load_tokenizer(bytes_and(merges=["Ã ©"]))
    assert list("é".encode()) == tokenizer.encode("é")


def test_whole_words(bytes_and: Callable[..., Any]) -> None:
    """With a pre-tokenizer that says so, a piece that is a token needs no merges."""
    ids = [load_tokenizer(bytes_and("abc", pre=pre)).encode("abc") for pre in ("glm4", "dbrx")]
    assert [[256], list(b"abc")] == ids


@pytest.mark.parametrize(("unk", "expected"), [(None, TokenizerError), (0, [0])])
def test_byte_without_token(tiny: Callable[..., Any], unk: int | None, expected: Any) -> None:
    """A byte that the vocabulary lacks is the unknown token, or an error that shows it."""
    keys = {} if unk is None else {"unknown_token_id": unk}
    tokenizer = load_tokenizer(tiny("gpt2", ("?", 2), "b", merges=[], pre="gpt-2", **keys))
    if unk is None:
        with pytest.raises(TokenizerError, match="got: b'a'"):
            tokenizer.encode("ba")
    else:
        assert [1, *expected] == tokenizer.encode("ba")


@pytest.fixture
def gemma(tiny: Callable[..., Any]) -> Any:
    """A Gemma 4 in small: characters, merges over a line, byte tokens for the rest."""
    tokens = [(f"<0x{b:02X}>", 6) for b in range(256)]
    tokens += ["a", "▁", "\n", "\n\n", "▁a", "▁▁", "a▁a"]
    merges = ["▁ ▁", "▁ a", "a ▁a"]
    keys = {"merges": merges, "bos_token_id": 0, "add_bos_token": False}
    return load_tokenizer(tiny("gemma4", *tokens, **keys))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [256]),
        (" a", [260]),
        ("a a", [262]),
        ("   a", [261, 260]),
        ("a\n\na", [256, 259, 256]),
        ("\n\n\n", [258, 258, 258]),
        ("é", [0xC3, 0xA9]),
        ("<0x41>", [0x3C, 0x30, 0x78, 0x34, 0x31, 0x3E]),
    ],
)
def test_gemma4(gemma: Any, text: str, ids: list[int]) -> None:
    """Spaces are U+2581, line ends are whole, and bytes are spelt, never parsed."""
    assert ids == gemma.encode(text)
    assert text == gemma.decode(ids)


@pytest.mark.parametrize("name", ["gpt-2", "qwen2"])
def test_vectors(vectors: Callable[..., Any], name: str) -> None:
    """The ids of llama.cpp and of Hugging Face's tokenizers."""
    stored = vectors(name)
    found = [(text, stored.tokenizer.encode(text)) for text, _ in stored.cases]
    assert stored.cases == found
    assert len(found) == 66


@pytest.mark.parametrize("name", ["gpt-2", "qwen2"])
def test_decode_gives_the_text_back(vectors: Callable[..., Any], name: str) -> None:
    """Byte-level tokens lose nothing."""
    stored = vectors(name)
    texts = [text for text, _ in stored.cases]
    assert texts == [stored.tokenizer.decode(ids) for _, ids in stored.cases]


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "phi-3", "bert-bge", "botchan-unigram"])
@pytest.mark.parametrize(
    "text", ["A" * 50_000, "\n" * 50_000, " " * 50_000 + "x", "歪" * 30_000, "." * 50_000]
)
def test_long_runs(vectors: Callable[..., Any], name: str, text: str) -> None:
    """A long run of one character takes under 2 s, and byte tokens give it back."""
    tokenizer = vectors(name).tokenizer
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - start < 2
    if name in ("gpt-2", "qwen2", "phi-3"):
        assert text == tokenizer.decode(ids)
