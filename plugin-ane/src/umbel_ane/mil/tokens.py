"""The words of MIL text: names, numbers, strings, punctuation; and the error of its readers.

A word is its text, and its first character tells its kind. Positions are kept beside, and
become a line and a column only when something is wrong.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

import attrs
from umbel.errors import UmbelError

MINUS = "\N{MINUS SIGN}"  # printed by some versions of coremlc instead of the hyphen
END = ""  # the word after the last one

# One match is a word with what stands before it; the other groups are what cannot be read. No
# two parts can match the same characters: a text without sense takes no longer than one with.
_BLANKS = r"\s*(?:(?://[^\n]*(?:\n|\Z)|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)\s*)*"
_WORD = re.compile(
    rf"""{_BLANKS}(?:
      ( [A-Za-z_][A-Za-z0-9_]*
      | -> | [(){{}}\[\]<>=,;?]
      | "(?:[^"\\\n]|\\.)*"
      | [-+{MINUS}]?(?: 0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][-+{MINUS}]?[0-9]+)?
                     | (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+{MINUS}]?[0-9]+)?
                     | inf\b | nan\b )
      )
      | (") | (/\*) | ((?s:.)) | \Z)""",
    re.VERBOSE,
)
_UNREAD = (  # of the other groups: what is wrong, what was expected
    ("a string does not end", 'a "'),
    ("a comment does not end", "*/"),
    ("a character that MIL does not have", "a name, a number or a string"),
)


class MilError(UmbelError):
    """A text is not a MIL program; `line` and `column` count from 1."""

    def __init__(
        self,
        what: str,
        *,
        line: int,
        column: int,
        expected: object = None,
        got: object = None,
        do: str | None = None,
    ) -> None:
        where = f"line {line}, column {column}"
        super().__init__(what, where=where, expected=expected, got=got, do=do)
        self.line, self.column = line, column


@attrs.frozen(eq=False)
class Tokens:
    """The words of a text; the last is `END`."""

    words: list[str]
    starts: list[int]  # where each begins in the text
    lines: list[int]  # where each line begins

    def line(self, index: int) -> int:
        """The line of a word."""
        return bisect_right(self.lines, self.starts[index])

    def error(self, index: int, what: str, *, expected: object, got: object) -> MilError:
        """Of the word at `index`."""
        return _error(self.lines, self.starts[index], what, expected=expected, got=got)


def tokenize(source: str | bytes) -> Tokens:
    """Bytes are UTF-8."""
    text = source if isinstance(source, str) else _decoded(source)
    lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))][:-1]
    words: list[str] = []
    starts: list[int] = []
    for found in _WORD.finditer(text):
        group = found.lastindex
        if group is None:
            break
        if group > 1:
            what, expected = _UNREAD[group - 2]
            got = ascii(text[found.start(group) :][:20])
            raise _error(lines, found.start(group), what, expected=expected, got=got)
        words.append(found[1])
        starts.append(found.start(1))
    words.append(END)
    starts.append(len(text))
    return Tokens(words, starts, lines)


def shown(word: str) -> str:
    """A word as messages show it."""
    if word == END:
        return "the end of the text"
    word = "".join(c if c.isprintable() else repr(c)[1:-1] for c in word[:60])
    return word if len(word) < 60 else word[:57] + "..."


def _decoded(source: bytes) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        before = source[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        msg = "the text is not UTF-8"
        got = f"byte {source[error.start]:#04x}"
        raise MilError(msg, line=line, column=column, expected="MIL text", got=got) from None


def _error(lines: list[int], at: int, what: str, *, expected: object, got: object) -> MilError:
    line = bisect_right(lines, at)
    return MilError(
        what, line=line, column=at - lines[line - 1] + 1, expected=expected, got=got
    )
