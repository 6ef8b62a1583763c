"""Keeps what users write from becoming control tokens when a chat template is rendered.

A template gives one text, in which its own control tokens must be parsed and those that stand
in what it was given must not, nor those that arise when it joins, cuts or cleans texts. Before
rendering, a noncharacter is put after each bracket, bar or other sign of control texts in the
given strings, and after each letter of a control text that has no signs; where one stands,
nothing is a control token; then `Tokenizer.encode` takes all of them out. A template that
asks for JSON in ASCII, or for a list as Python shows it, writes the mark as ESCAPED, which is
turned back after rendering; where a given string holds that spelling itself, a mark in it keeps
it what it is.

Other letters, digits, `_` and blanks stay as they are: a template that writes `<|{{ role }}|>`
means the token. So do tags like `</think>` and words like `/no_think` that stand in the
template, which may look for them, if they cannot be part of a control text.
"""

import re
from functools import lru_cache
from typing import Any

from umbel.text.tokenizer import MARK, Matcher

LOOKED_FOR = 64  # tags and words of one template at most: none that is known has so many
WORK = 1 << 22  # characters of control texts, times tags, that are compared at most
ESCAPED = ascii(MARK)[1:-1]
_TAG = re.compile(r"</?\w{1,24}>|/\w{1,24}")


def guarded(value: Any, control: Matcher, source: str) -> Any:
    """The value, of JSON's types, with its strings marked for this template."""
    if isinstance(value, str):
        return _pattern(control, source).sub(_mark, value.replace(MARK, ""))
    if isinstance(value, list):
        return [guarded(item, control, source) for item in value]
    if isinstance(value, dict):
        marked = ([guarded(part, control, source) for part in item] for item in value.items())
        return type(value)(marked)
    return value


def _mark(found: re.Match[str]) -> str:
    return found["kept"] or "".join(character + MARK for character in found[0])


@lru_cache(8)
def _pattern(control: Matcher, source: str) -> re.Pattern[str]:
    """Finds what is to be marked, and before that the tags to be kept."""
    signs = {c for text in control.ids for c in text if _is_sign(c)}
    words = [text for text in control.ids if not any(map(_is_sign, text))]
    texts = MARK + MARK.join(control.ids).casefold() + MARK
    tags = list(dict.fromkeys(_TAG.findall(source)))[: min(LOOKED_FOR, WORK // len(texts))]
    kept = [tag for tag in tags if not _touches(tag.casefold(), texts)]
    return re.compile(f"(?P<kept>{_any_of(kept)})|{_any_of([ESCAPED, *words, *signs])}")


def _any_of(texts: list[str]) -> str:
    longest_first = sorted(texts, key=len, reverse=True)
    return "|".join(map(re.escape, longest_first)) or "(?!)"


def _is_sign(character: str) -> bool:
    return not (character == "_" or character.isalnum() or character.isspace())


def _touches(tag: str, texts: str) -> bool:
    """Whether the tag is in one of the texts, holds or overlaps one; marks stand around each.

    They may share any part of the tag that ends where the tag does or the text does.
    """
    n = len(tag)
    places = ((i, j) for i in range(n) for j in range(i + 1, n + 1))
    return any(MARK * (i > 0) + tag[i:j] + MARK * (j < n) in texts for i, j in places)
