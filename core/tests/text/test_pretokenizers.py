"""How texts are cut before byte-pair merging."""

from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from umbel.text.pretokenizers import pre_tokenizers

KNOWN = pre_tokenizers()
PATTERNS = {pre.patterns: name for name, pre in KNOWN.items()}


def split(name: str, text: str) -> list[str]:
    return KNOWN[name].split(text)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("default", ["Hi", " there", "!?", " ", "123", "45", "\n", "\n", "x"]),
        ("gpt-2", ["We", "'ll", " pay", " 12345", " €'", "LL", " ", " x", "\n\n"]),
        ("starcoder", ["a", "1", "2", " b", " ", "3"]),
        ("falcon", ["a", "`$", "b", " ", "123", "4"]),
        ("llama-bpe", ["'LL", " x", "123", "4", ".\n\n", " \n", " ", " y", "\tz"]),
        ("qwen2", ["a", "1", "2", "'Re", " ée", "\u0301,\n", "b"]),
        ("qwen35", ["re\u0301sume\u0301", "1", "2", " ,", "b"]),
        ("jais-2", ["a", " " * 8, " " * 4, " " * 2, " b"]),
        ("ufakzeka", ["Ankara", "'da", " ", "5"]),
        ("laguna", ["a", ",", "\n", " b", "\n\n"]),
        ("minicpm5", ["a", "123", "4", " b"]),
        ("bailingmoe", ["a", " \n\n", "b", ";\n\n", "c", "1", "2"]),
        ("seed-coder", ["a", " ;", "\n\n", "b"]),
        ("exaone-moe", ["ab cd", "1", "2", " ;\n", "\n", "x"]),
        ("deepseek-llm", ["\n", "Ab", " cd", " .,", "我想", "123", "ა"]),
        ("deepseek-coder", ["\n", " Ab", " .,", "我想", "1", "2"]),
        ("deepseek-v3", ["123", "4", "我", ".foo", " bar", " +\n", "e\u0301"]),
        ("spark2_5", ["1", "2", "3", " +", "\n", "a", "½"]),
        ("afmoe", ["1", "234", "567", "กข", "!a", " b"]),
        ("gpt-4o", ["Hello", "World's", " ABCde", "F", "123", "4", "./\n", " x"]),
        ("tiny_aya", ["1", "234", "567", " Ab", " ", "12"]),
        ("tekken", ["Hello", "World", "'s", " ", "1", "2", "/"]),
        ("youtu", ["가나", "！、", "ㄅ", "我ア", "Ab", "1", "2"]),
        ("kimi-k2", ["我想", "apple", "工作", "'s", " ", "131", "4", ".\n", "/x"]),
        ("bloom", ["Hello", ",", " world", "。(", "a", ")"]),
        ("viking", ["a", "1", "2", ",", " b"]),
        ("superbpe", ["a b ", "1", "234", "567", " c"]),
        ("chameleon", ["IMGIMGABZ", "    ", "a", "1", "2", "!", "  ", "b"]),
        ("gemma4", ["a▁b ", "\n\n", "c"]),
    ],
)
def test_pieces(name: str, pieces: list[str]) -> None:
    """Each family of patterns cuts as the tokenizers that were trained with it."""
    assert pieces == split(name, "".join(pieces))


@pytest.mark.parametrize("name", PATTERNS.values())
@given(text=st.text(st.sampled_from("aB1½ \n\r\t'sée\u0301我!/\udce6") | st.characters()))
def test_pieces_join_to_the_text(name: str, text: str) -> None:
    """Whatever the text, nothing of it is lost and no piece is empty."""
    pieces = split(name, text)
    assert (text, True) == ("".join(pieces), all(pieces))


@pytest.mark.parametrize("name", PATTERNS.values())
@pytest.mark.parametrize(
    "unit", ["A", "\n", " ", "歪", ".", "1", "\u0301", "aA", " a", "\r\n "]
)
def test_long_runs(name: str, unit: str) -> None:
    """No pattern backtracks its way to a time that grows with the square of the text."""
    text = unit * (10_000 // len(unit)) + "x"
    start = time.process_time()
    pieces = split(name, text)
    assert text == "".join(pieces)
    assert time.process_time() - start < 1


def test_long_s_is_no_suffix() -> None:
    """Only the letters of ASCII make an English suffix."""
    assert split("qwen2", "we'ſ") == ["we", "'ſ"]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("llama-bpe", (True, True, False)),
        ("tekken", (True, True, False)),
        ("glm4", (True, False, False)),
        ("chameleon", (False, True, False)),
        ("gemma4", (False, True, True)),
        ("sarvam-moe", (False, False, True)),
        ("qwen2", (False, False, False)),
    ],
)
def test_flags(name: str, flags: tuple[bool, bool, bool]) -> None:
    """What else a name says: whole words first, BOS by default, tokens of characters."""
    pre = KNOWN[name]
    assert flags == (pre.whole_words, pre.add_bos, pre.raw)


def test_file_is_read_whole() -> None:
    """Every entry of the data file is known, under each of its names; no part is left over."""
    assert (len(KNOWN), len(PATTERNS)) == (90, 29)
    assert KNOWN["mellum"] is KNOWN["modern-bert"] is KNOWN["gpt-2"]
    patterns = [pattern for pre in KNOWN.values() for pattern in pre.patterns]
    assert [p for p in patterns if "<" in p and regex.search(r"<\w+>", p)] == []
