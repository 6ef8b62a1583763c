"""The name of a pre-tokenizer is found by what it does."""

from __future__ import annotations

import pytest
from umbel.errors import UnsupportedModelError
from umbel.text.pretokenizers import PreTokenizer, pre_tokenizers
from umbel.tools.convert.pretokenizer import pre_tokenizer_name

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
KNOWN = {(p.patterns, p.whole_words): n for n, p in pre_tokenizers().items() if not p.raw}
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def tree(*patterns: str, behavior: str = "Isolated") -> dict:
    """A pre-tokenizer of a tokenizer.json."""
    splits = [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": behavior,
            "invert": behavior == "Removed",
        }
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, BYTES]}


@pytest.mark.parametrize("key", KNOWN, ids=KNOWN.values())
def test_all_that_have_a_name(key):
    """Each finds itself, or one that cuts as it does."""
    patterns, whole_words = key
    name = pre_tokenizer_name(tree(*patterns), whole_words, "x")
    found = pre_tokenizers()[name]
    text = "I'LL say 'Hello  wörld' 1234567 times...\r\n\n\t漢字かな \u0301x ½!?\n {} "
    assert found.whole_words == whole_words
    assert found.split(text) == PreTokenizer(patterns).split(text)
    assert (found.patterns == patterns) or name == "qwen2"  # bailingmoe cuts alike


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (tree(GPT4O), "gpt-4o"),
        (tree(GPT4O, behavior="Removed"), "gpt-4o"),
        (tree(*DEEPSEEK), "deepseek-v3"),
        ({**BYTES, "use_regex": True}, "gpt-2"),
    ],
    ids=["gpt-4o", "gpt-4o-inverse", "deepseek-v3", "gpt-2"],
)
def test_as_published_folders_spell_them(found, name):
    """Other spellings of the same."""
    assert pre_tokenizer_name(found, False, "x") == name


@pytest.mark.parametrize(
    "patterns",
    [
        (GPT4O.replace("{1,3}", "{1,4}"),),
        (DEEPSEEK[0], DEEPSEEK[1].replace("龥", "龤"), DEEPSEEK[2]),  # one character less
        (GPT4O.replace("/]*", "]*", 1),),
        ("(",),
        (),
    ],
    ids=["digits", "a-range", "a-slash", "malformed", "none"],
)
def test_what_is_nearly_the_same_is_refused(patterns):
    """A small difference shows."""
    with pytest.raises(UnsupportedModelError, match="cuts texts"):
        pre_tokenizer_name(tree(*patterns), False, "x")
