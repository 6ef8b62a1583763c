"""Keeps what users write from becoming control tokens when a chat template is rendered.

A template gives one text, in which its own control tokens must be parsed and those that stand
in what it was given must not. Before rendering, each control text in the given strings is
marked with a noncharacter, letter by letter; after it, the marked places become plain parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from umbel.errors import TemplateError
from umbel.text.tokenizer import MARK, Matcher, Tokenizer

WORDS = ("role", "type")  # templates compare these


def guarded(value: Any, control: Matcher) -> Any:
    """The value with the control texts in all its strings marked."""
    longest_first = sorted(control.ids, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    try:
        return _guard(value, pattern)
    except RecursionError as error:
        msg = "what the chat template is given is nested too deeply"
        raise TemplateError(msg, where="messages, tools or options") from error


def _guard(value: Any, control: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        plain = value.replace(MARK, "")
        return control.sub(lambda found: "".join(c + MARK for c in found[0]), plain)
    if isinstance(value, Mapping):
        return {_guard(k, control): _item(k, v, control) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_guard(v, control) for v in value]
    return value


def _item(key: object, value: Any, control: re.Pattern[str]) -> Any:
    is_word = key in WORDS and isinstance(value, str) and value.isidentifier()
    return value if is_word else _guard(value, control)


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a rendered template, whose control texts are tokens where not marked."""
    return tokenizer.encode(text, special=True, eos=False)
