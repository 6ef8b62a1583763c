"""Which of the pre-tokenizers that GGUF files name cuts texts as a tokenizer.json does.

Patterns of one meaning are spelt in many ways, so what they do is compared and not how they
are written: both cut one long text, in which characters of all classes that patterns tell apart
follow each other in all orders, and those that stand in the patterns, with their neighbours.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any, NoReturn

import regex

from umbel.errors import UnsupportedModelError
from umbel.text.pretokenizers import PreTokenizer, pre_tokenizers

_GPT2 = pre_tokenizers()["gpt-2"].patterns[-1]
_SIGNS = "!-/:-@\\[-`{-~"  # of ASCII
# No long s, which a (?i) may take for an s: the named ones spell out the case, and so do we.
_ALPHABET = [
    *"aszAZtTdDmMlLrRvVeEéÉßǅʰªあアー漢字한ㅎงकाאبΩяЖ\u0301\u20e3\u200d",
    *"0123456789٣५Ⅷ½²①",
    *"""!"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¿«’“”…—、。！×€∑🦙👍""",
    *"   \t\n\r\xa0\u3000\u2028\ufeff\x00",
]
_WORDS = ["'s", "'S", "'re", "'LL", "'ve", "'d", "'t", "\r\n", "\n\n", " \n ", "...\n", "12"]
_WORDS += ["1234567", "Hello", "world", " hELLO", "IMGIMGAZ", *(" " * n for n in (2, 4, 9, 70))]
LENGTH = 12_000  # pieces of the text
_FIRST = ("gpt-2", "llama-bpe", "qwen2", "smollm")  # of equal ones, the best known


def pre_tokenizer_name(tree: Any, whole_words: bool, where: str) -> str:
    """The value of `tokenizer.ggml.pre` for the pre-tokenizer of a tokenizer.json."""
    patterns = tuple(_patterns(tree, where))
    try:
        theirs = PreTokenizer(patterns)
        text = _probe(patterns)
        pieces = theirs.split(text)
    except regex.error as error:
        _refuse(tree, where, f"{error}")
    there = pre_tokenizers()
    for name in (*_FIRST, *there):
        known = there[name]
        if known.raw or known.whole_words != whole_words:
            continue
        if known.split(text[:500]) == theirs.split(text[:500]) and known.split(text) == pieces:
            return name
    return _refuse(tree, where, "with ignore_merges" if whole_words else None)


def _refuse(tree: Any, where: str, what: str | None = None) -> NoReturn:
    msg = "the tokenizer cuts texts in a way that no pre-tokenizer here does"
    got = " ".join(filter(None, (json.dumps(tree, ensure_ascii=False), what)))
    do = "a model file cannot hold a pattern of its own: tell its makers, or add it to Umbel"
    raise UnsupportedModelError(msg, where=where, got=got[:2000], do=do)


def _patterns(tree: Any, where: str) -> list[str]:
    """The patterns that cut the text one after the other."""
    match tree:
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return [pattern for part in parts for pattern in _patterns(part, where)]
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
            return []
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return [_GPT2]
        case {"type": "Digits", "individual_digits": bool(one)}:
            return [r"\p{N}" if one else r"\p{N}+"]
        case {"type": "Punctuation", "behavior": "Isolated" | "Contiguous" as how}:
            return [rf"[\p{{P}}{_SIGNS}]" + "+" * (how == "Contiguous")]
        case (
            {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            # What this removes is nothing, where the pattern matches everything.
            | {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": True}
        ):
            match pattern:
                case {"Regex": str(text)}:
                    return [text]
                case {"String": str(text)}:
                    return [regex.escape(text)]
    return _refuse(tree, where)


def _probe(patterns: tuple[str, ...]) -> str:
    """The text that is cut, longer where their patterns have characters of their own."""
    common, named = _common()
    rare = sorted({c for pattern in patterns for c in _characters(pattern)} - named)
    return common + (_drawn([*rare, *_ALPHABET]) if rare else "")


@cache
def _common() -> tuple[str, frozenset[str]]:
    """The text for all patterns that have a name, and the characters in those."""
    known = [pattern for pre in pre_tokenizers().values() for pattern in pre.patterns]
    named = {c for pattern in known for c in _characters(pattern)}
    text = _drawn([*_ALPHABET, *_WORDS]) + _drawn([*sorted(named), *_ALPHABET])
    return text, frozenset(named)


def _drawn(pieces: list[str]) -> str:
    return "".join(random.Random(0).choices(pieces, k=LENGTH))


def _characters(pattern: str) -> list[str]:
    """The characters beyond ASCII that stand in a pattern, and their neighbours."""
    hexadecimal = r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\x\{([0-9a-fA-F]{1,6})\}"
    escaped = regex.findall(hexadecimal, pattern)
    codes = [int("".join(groups), 16) for groups in escaped] + [ord(c) for c in pattern]
    near = {code + d for code in codes if 127 < code < 0x10FFFE for d in (-1, 0, 1)}
    return [chr(code) for code in near if not 0xD800 <= code < 0xE000]
