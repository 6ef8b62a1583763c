"""Loading: what a file must say, and what is assumed when it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from umbel.errors import TokenizerError, UnsupportedModelError
from umbel.text import load_tokenizer
from umbel.text.pretokenizers import pre_tokenizers

PREFIX = "tokenizer.ggml."


@pytest.mark.parametrize(
    ("name", "words"), [("no-such-pre", "'no-such-pre'"), (None, "missing")]
)
def test_unknown_pre_tokenizer(
    bytes_and: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    name: str | None,
    words: str,
) -> None:
    """An unknown or missing pre-tokenizer is "default", with one warning that says so."""
    metadata = bytes_and(pre=name)
    if name is None:
        del metadata[PREFIX + "pre"]
    tokenizer = load_tokenizer(metadata, where="x.gguf")
    assert (tokenizer.coder.pre, len(caplog.records)) == (pre_tokenizers()["default"], 1)
    assert caplog.records[0].levelno == logging.WARNING
    for word in ("x.gguf", words, "'default'"):
        assert word in caplog.text


def test_default_by_name(
    bytes_and: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A file that asks for "default" gets it without a warning; SentencePiece needs none."""
    tokenizer = load_tokenizer(bytes_and(pre="default"))
    assert tokenizer.coder.pre == pre_tokenizers()["default"]
    assert caplog.text == ""


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "whitespace", "no_vocab"])
def test_unsupported_model(tiny: Callable[..., Any], model: str) -> None:
    """A kind of tokenizer that is not here is refused by name."""
    with pytest.raises(UnsupportedModelError, match=f"got: {model}"):
        load_tokenizer(tiny(model, "a"), where="x.gguf")


def test_no_tokenizer() -> None:
    """A file without a tokenizer says so."""
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer({"general.architecture": "llama"}, where="x.gguf")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", [], "vocabulary is empty"),
        ("tokens", None, "missing"),
        ("tokens", "abc", "wrong type"),
        ("tokens", [1, 2, 3], "wrong type"),
        ("token_type", [1, 1], "one value for each token"),
        ("token_type", [1, 1, 1, 1], "one value for each token"),
        ("token_type", ["1", "1", "1"], "wrong type"),
        ("token_type", 1, "wrong type"),
        ("scores", [0.0], "one value for each token"),
        ("scores", None, "missing"),
        ("scores", [0.0, float("nan"), 1.0], "not a finite number"),
        ("scores", [0.0, float("inf"), 1.0], "not a finite number"),
        ("bos_token_id", 3, "not in the vocabulary"),
        ("eos_token_id", 2**32 - 1, "not in the vocabulary"),
        ("eot_token_id", -1, "not in the vocabulary"),
        ("padding_token_id", 3, "not in the vocabulary"),
        ("unknown_token_id", "0", "wrong type"),
        ("bos_token_id", True, "wrong type"),
        ("add_bos_token", 1, "wrong type"),
        ("add_space_prefix", "yes", "wrong type"),
        ("model", 5, "wrong type"),
    ],
)
def test_bad_values(tiny: Callable[..., Any], key: str, value: Any, message: str) -> None:
    """Each bad value is one typed error that names the file and the key."""
    metadata = {**tiny("llama", "a", "b", "c"), PREFIX + key: value}
    if value is None:
        del metadata[PREFIX + key]
    with pytest.raises(TokenizerError, match=message) as error:
        load_tokenizer(metadata, where="x.gguf")
    assert f"x.gguf: {PREFIX}{key}" == error.value.where


@pytest.mark.parametrize("model", ["t5", "llama"])
def test_scores_are_needed(tiny: Callable[..., Any], model: str) -> None:
    """Where scores decide, they must be there; elsewhere they may be missing."""
    metadata = tiny(model, "a")
    del metadata[PREFIX + "scores"]
    with pytest.raises(TokenizerError, match="scores"):
        load_tokenizer(metadata)


def test_merges_are_needed(bytes_and: Callable[..., Any]) -> None:
    """Byte pairs without merges would be bytes only: refused."""
    metadata = bytes_and()
    del metadata[PREFIX + "merges"]
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges"):
        load_tokenizer(metadata)


@pytest.mark.parametrize(
    "name",
    ["<0x-1>", "<0xZZ>", "<0x>", "<0x0>", "<0x041>", "<0x+1>", "<0x 1>", "a", "", "<0x4１>"],
)
def test_broken_byte_tokens(tiny: Callable[..., Any], name: str) -> None:
    """A byte token must name a byte by two hexadecimal digits."""
    with pytest.raises(TokenizerError, match="malformed name") as error:
        load_tokenizer(tiny("llama", ("<0x00>", 6), (name, 6)))
    assert f"{name!r} (token 1)" == error.value.got


def test_broken_charsmap(tiny: Callable[..., Any]) -> None:
    """Normalisation rules are checked at load."""
    with pytest.raises(TokenizerError, match="malformed"):
        load_tokenizer(tiny("t5", "a", "b", "c", precompiled_charsmap=[255, 255, 1]))


def test_signed_charsmap(vectors: Callable[..., Any]) -> None:
    """Rules stored as signed bytes are the same rules."""
    stored = vectors("botchan-unigram")
    rules = np.array(stored.metadata[PREFIX + "precompiled_charsmap"], np.uint8).view(np.int8)
    metadata = {**stored.metadata, PREFIX + "precompiled_charsmap": rules.tolist()}
    assert stored.tokenizer.coder.charsmap == load_tokenizer(metadata).coder.charsmap


def test_default_ids_out_of_range(
    tiny: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In a vocabulary of one token the usual BOS 1 does not exist: none is added, and said."""
    tokenizer = load_tokenizer(tiny("llama", "a"))
    assert (tokenizer.vocab.roles, tokenizer.bos_id, tokenizer.eos_id) == (
        {"unk": 0},
        None,
        None,
    )
    assert tokenizer.first == []
    assert "BOS is to be added" in caplog.text


@pytest.mark.parametrize(
    ("model", "ids", "adds"),
    [
        ("llama", (1, 2, 0, None, None), (True, False)),
        ("t5", (None, 1, 2, 0, None), (False, True)),
        ("bert", (101, 102, 100, 0, 102), (True, True)),
        ("gpt2", (None, None, None, None, None), (False, False)),
    ],
)
def test_defaults(
    tiny: Callable[..., Any], model: str, ids: tuple[int | None, ...], adds: tuple[bool, bool]
) -> None:
    """Roles that a file does not name are those of the kind of tokenizer."""
    tokens = [f"t{i}" for i in range(104)]
    t = load_tokenizer(tiny(model, *tokens, merges=[], pre="gpt-2"))
    assert ids == tuple(map(t.vocab.roles.get, ("bos", "eos", "unk", "pad", "sep")))
    assert ids[:2] == (t.bos_id, t.eos_id)
    assert ([t.bos_id] * adds[0], [t.eos_id] * adds[1]) == (t.first, t.last)
    assert t.n_vocab == 104


def test_bos_by_pre_tokenizer(bytes_and: Callable[..., Any]) -> None:
    """Some pre-tokenizers mean a BOS, unless the file says no."""
    keys = {"pre": "llama-bpe", "bos_token_id": 0}
    assert load_tokenizer(bytes_and(**keys)).first == [0]
    assert load_tokenizer(bytes_and(**keys, add_bos_token=False)).first == []


@pytest.mark.parametrize(
    ("tokens", "keys", "ends"),
    [
        ([("<|im_end|>", 3), ("<|endoftext|>", 3), ("<|x|>", 3)], {}, {0, 1}),
        ([("a", 1), ("b", 3)], {"eos_token_id": 1}, {1}),
        ([("a", 3), ("b", 3)], {"eos_token_id": 0, "eot_token_id": 1}, {0, 1}),
        ([("<|eot_id|>", 1), ("<end_of_turn>", 4)], {}, {0, 1}),
        ([("</s>", 1), ("</s> ", 1)], {}, set()),
        ([("</s>", 3)], {}, {0}),
        ([("<|end|>", 3)], {}, {0}),
    ],
)
def test_ends_of_generation(
    tiny: Callable[..., Any], tokens: list[Any], keys: dict[str, int], ends: set[int]
) -> None:
    """A generation ends at the ids that the file names and at tokens known by their text."""
    tokenizer = load_tokenizer(tiny("gpt2", *tokens, pre="gpt-2", merges=[], **keys))
    assert frozenset(ends) == tokenizer.vocab.ends


def test_ends_by_name_are_control_tokens(bytes_and: Callable[..., Any]) -> None:
    """A turn's end that a file calls ordinary is not parsed in text, nor shown."""
    tokenizer = load_tokenizer(bytes_and(("<|im_end|>", 4)))
    assert list(b"<|im_end|>") == tokenizer.encode("<|im_end|>")
    assert tokenizer.decode([256]) == ""


def test_metadata_is_left_alone(bytes_and: Callable[..., Any]) -> None:
    """Loading changes nothing in the file's metadata."""
    metadata = bytes_and(("<|im_end|>", 4))
    before = [*metadata[PREFIX + "token_type"]]
    load_tokenizer(metadata)
    assert before == metadata[PREFIX + "token_type"]


def test_equal_tokens(bytes_and: Callable[..., Any]) -> None:
    """Of equal tokens the first is used; an empty one is in no text."""
    tokenizer = load_tokenizer(bytes_and("ab", "ab", "", ("", 3), merges=["a b"]))
    assert tokenizer.encode("ab", special=True) == [256]
    assert [tokenizer.decode([257]), tokenizer.decode([258])] == ["ab", ""]
