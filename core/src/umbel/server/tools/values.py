"""A value of JSON, read while it comes and told as valid JSON.

What is valid goes on character by character, as the model wrote it. Read besides, since small
models write it and it can mean one thing only: what Python writes (single quotes, True, None,
1_000), a comma too many, a raw line end in a string, a backslash that escapes nothing.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Protocol

from umbel.server.tools.cursor import Broken, Cursor, Steps

DEEPEST = 64  # each level costs time for every character within, and stack
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.A)
_WORDS = {"true", "false", "null"}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Put(Protocol):
    """Takes a part of the JSON text; `keep` is 1 where the cursor's character is not in it."""

    def __call__(self, text: str, keep: int = 0, /) -> None: ...


def value(cursor: Cursor, put: Put, depth: int = 0) -> Steps[None]:
    """Any value; ends at the character after it."""
    if cursor.char in ("{", "["):
        yield from _group(cursor, put, depth)
        yield
    elif cursor.char in ('"', "'"):
        yield from string(cursor, put)
        yield
    else:
        word = yield from _word(cursor)
        put(_scalar(word), len(cursor.char))


def string(cursor: Cursor, put: Put) -> Steps[None]:
    """A string; ends at the quote that closes it, so that it can be told at once."""
    quote = cursor.char
    if quote not in ('"', "'"):
        raise Broken
    put('"')
    yield
    while cursor.char != quote:
        if not cursor.char:
            raise Broken
        if cursor.char == "\\":
            yield
            yield from _escape(cursor, put)
        else:
            put(_plain(cursor.char))
            yield
    put('"')


def text(cursor: Cursor) -> Steps[str]:
    """What a string says; ends as `string` does."""
    parts: list[str] = []
    yield from string(cursor, lambda part, _=0: parts.append(part))
    return str(json.loads("".join(parts)))


def whole(cursor: Cursor) -> Steps[str]:
    """The JSON text of a value; ends as `value` does."""
    parts: list[str] = []
    yield from value(cursor, lambda part, _=0: parts.append(part))
    return "".join(parts)


def read(given: str) -> str | None:
    """The JSON text of a value that is whole; None: it is none."""
    cursor = Cursor({}, str)
    steps = whole(cursor)
    for cursor.char in (*given.strip(), ""):
        try:
            next(steps)
        except Broken:
            return None
        except StopIteration as done:
            return None if cursor.char else str(done.value)
    return None


def dumped(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False)


def _group(cursor: Cursor, put: Put, depth: int) -> Steps[None]:
    """An object or an array; ends at its last bracket."""
    if depth == DEEPEST:
        raise Broken
    keyed = cursor.char == "{"
    closing = "}" if keyed else "]"
    put(cursor.char)
    yield
    gap = yield from cursor.blanks()
    while cursor.char != closing:
        put(gap, len(cursor.char))
        if keyed:
            yield from string(cursor, put)
            yield
            gap = yield from cursor.blanks()
            put(gap, len(cursor.char))
            if cursor.char != ":":
                raise Broken
            put(":")
            yield
            gap = yield from cursor.blanks()
            put(gap, len(cursor.char))
        yield from value(cursor, put, depth + 1)
        gap = yield from cursor.blanks()
        if cursor.char == ",":  # told once something comes after it
            yield
            gap += "," + (yield from cursor.blanks())
        elif cursor.char != closing:
            raise Broken
    put(gap.replace(",", "") + closing)


def _escape(cursor: Cursor, put: Put) -> Steps[None]:
    """What comes after a backslash."""
    char = cursor.char
    if char and char in '"\\/bfnrt':
        put("\\" + char)
        yield
    elif char == "'":
        put(char)
        yield
    elif char in ("u", "x"):
        yield
        size, digits = (4, "") if char == "u" else (2, "")
        while re.fullmatch("[0-9a-fA-F]", cursor.char):
            digits += cursor.char
            if len(digits) == size:
                put(f"\\u{digits:0>4}")
                yield
                return
            yield
        put(f"\\\\{char}{digits}", len(cursor.char))
    else:
        put("\\\\", len(char))


def _plain(char: str) -> str:
    """A character of a string that JSON would have escaped, though the model did not."""
    return json.dumps(char)[1:-1] if char == '"' or char < " " else char


def _word(cursor: Cursor) -> Steps[str]:
    found = ""
    while cursor.char.isalnum() or (cursor.char and cursor.char in "+-._"):
        found += cursor.char
        yield
    return found


def _scalar(word: str) -> str:
    if word in _WORDS or _NUMBER.fullmatch(word):
        return word
    if word in _PYTHON:
        return _PYTHON[word]
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        raise Broken from None
    if not math.isfinite(number):
        raise Broken
    return repr(number)
