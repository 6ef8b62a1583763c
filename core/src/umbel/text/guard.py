"""Keeps what users write from becoming control tokens when a chat template is rendered.

A template gives one text, in which its own control tokens must be parsed and those that stand
in the messages must not. Before rendering, each control text in the messages is marked with a
noncharacter; after it, the marked places become plain parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from umbel.text.tokenizer import Matcher, Tokenizer

T = TypeVar("T")
MARK = "\ufdd0"  # a Unicode noncharacter: never part of a text


def guarded(value: T, control: Matcher) -> T:
    """The value with the control texts in all its strings marked; roles and types stay."""
    longest_first = sorted(control.ids, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    return _guard(value, pattern)  # type: ignore[no-any-return]


def _guard(value: Any, control: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        plain = value.replace(MARK, "")
        return control.sub(lambda found: "".join(c + MARK for c in found[0]), plain)
    if isinstance(value, Mapping):
        return {k: v if k in ("role", "type") else _guard(v, control) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_guard(v, control) for v in value]
    return value


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a rendered template: what is marked as plain text, the rest with tokens."""
    pieces = re.split(f"((?:.{MARK})+)", text, flags=re.DOTALL)
    parts = [(piece.replace(MARK, ""), i % 2 == 0) for i, piece in enumerate(pieces)]
    return tokenizer.encode_parts(parts, eos=False)
