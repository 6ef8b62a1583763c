"""Keeps what users write from becoming control tokens when a chat template is rendered.

A template gives one text, in which its own control tokens must be parsed and those that stand
in what it was given must not, nor those that arise when it joins, cuts or cleans texts. Before
rendering, a noncharacter is put after each bracket, bar or other sign of control texts in the
given strings; where one stands, nothing is a control token; then all are taken out.

Letters, digits, `_` and blanks stay as they are: a template that writes `<|{{ role }}|>` means
the token. So do tags like `</think>` and words like `/no_think`, which templates look for, if
they cannot be part of a control text. Those that can be are not found by the template.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from umbel.errors import TemplateError
from umbel.text.tokenizer import MARK, Matcher, Tokenizer

WORDS = ("role", "type")  # templates compare these


_TAG = r"</?\w{1,32}>|/\w{1,32}"


def guarded(value: Any, control: Matcher) -> Any:
    """The value with the signs of control texts in all its strings marked."""
    signs = {c for text in control.ids for c in text if _is_sign(c)}
    # without a sign: only as a whole
    words = [text for text in control.ids if not any(map(_is_sign, text))]
    found = [*map(re.escape, sorted(words, key=len, reverse=True)), *map(re.escape, signs)]
    pattern = re.compile("|".join((f"(?P<tag>{_TAG})", *found)))
    touches = lru_cache(control.touches)

    def marked(text: str) -> str:
        def mark(found: re.Match[str]) -> str:
            if found["tag"] and not touches(found[0]):
                return found[0]
            whole = found[0] in words
            return "".join(c + MARK if whole or c in signs else c for c in found[0])

        return pattern.sub(mark, text.replace(MARK, ""))

    try:
        return _guard(value, marked)
    except RecursionError as error:
        msg = "what the chat template is given is nested too deeply"
        raise TemplateError(msg, where="messages, tools or options") from error


def _is_sign(character: str) -> bool:
    return not (character == "_" or character.isalnum() or character.isspace())


def _guard(value: Any, marked: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return marked(value)
    if isinstance(value, Mapping):
        return {_guard(k, marked): _item(k, v, marked) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_guard(v, marked) for v in value]
    return value


def _item(key: object, value: Any, marked: Callable[[str], str]) -> Any:
    if key in WORDS and isinstance(value, str) and value.isidentifier():
        return value
    if key == "arguments" and isinstance(value, str) and value != marked(value):
        # JSON, whose own brackets a mark would break
        with contextlib.suppress(ValueError):
            return json.dumps(_guard(json.loads(value), marked), ensure_ascii=False)
    return _guard(value, marked)


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a rendered template, whose control texts are tokens where not marked."""
    return tokenizer.encode(text, special=True, eos=False)
