"""Goes over the words of a text, for the parser: one word after the other, lists, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from umbel_ane.mil.program import Type
from umbel_ane.mil.tokens import Tokens, shown

DEEPEST = 64  # of types and values in one another

T = TypeVar("T")


class Reader:
    """`at` is the number of the word to read next; the last word is never passed."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.words = tokens.words
        self.at = 0
        self.types: dict[tuple[str, ...], Type] = {}  # types that were read, by their words

    def take(self, word: str) -> None:
        """Passes the word, which must be that one."""
        if self.words[self.at] != word:
            self.fail(f"{word} is missing", word)
        self.at += 1

    def name(self, what: str) -> str:
        word = self.words[self.at]
        if not word.isidentifier():
            self.fail("a name is missing", what)
        self.at += 1
        return word

    def opens(self) -> bool:
        """Whether a value with its type begins here, rather than a name."""
        return self.words[self.at] != "" and self.words[self.at + 1] in ("(", "<")

    def many(self, close: str, read: Callable[[], T]) -> list[T]:
        """Things with commas between, up to `close`."""
        found: list[T] = []
        if self.words[self.at] != close:
            found.append(read())
            while self.words[self.at] == ",":
                self.at += 1
                found.append(read())
        self.take(close)
        return found

    def named(self, close: str, read: Callable[[], T]) -> dict[str, T]:
        """key = thing, ... up to `close`."""
        found: dict[str, T] = {}
        words = self.words
        while words[self.at] != close:
            if found:
                self.take(",")
            key = self.name("the name of an argument")
            if key in found:
                self.fail("an argument is given twice", "each once", self.at - 1)
            self.take("=")
            found[key] = read()
        self.at += 1
        return found

    def until(self, close: str) -> list[str]:
        """The words up to `close`, which is passed."""
        try:
            end = self.words.index(close, self.at)
        except ValueError:
            self.fail(f"{close} is missing", close, len(self.words) - 1)
        found = self.words[self.at : end]
        self.at = end + 1
        return found

    def convert(self, convert: Callable[[str], T]) -> T:
        """The value of the word; `convert` raises ValueError with what it expected."""
        try:
            value = convert(self.words[self.at])
        except ValueError as error:
            self.fail("a value cannot be read", str(error))
        self.at += 1
        return value

    def not_deeper(self, depth: int) -> None:
        if depth >= DEEPEST:
            self.fail("there are too many brackets in one another", f"{DEEPEST} at most")

    def fail(
        self, what: str, expected: object, at: int | None = None, got: object = None
    ) -> NoReturn:
        """Raises MilError for the word to read next, or that at `at`."""
        where = self.at if at is None else at
        found = shown(self.words[where]) if got is None else got
        raise self.tokens.error(where, what, expected=expected, got=found)
