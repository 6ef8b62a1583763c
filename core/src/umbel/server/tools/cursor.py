"""Where a parser stands in the answer: the character that it looks at, and what it holds back.

The parser is made of generators that read one character at a time: a `yield` is done with it
and waits for the next. So nothing can depend on how the text is cut, and what is written down
is the grammar itself. After the last character comes "", which no rule takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias, TypeVar

import attrs

from umbel.server.tools.offers import Tool
from umbel.server.tools.pieces import Arguments, CallStart, Piece, Reasoning, Text

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]


class Broken(Exception):  # noqa: N818  # no error: it only ends the attempt to read a call
    """What looked like a call is none, at the character that is looked at."""


@attrs.define(eq=False)
class Cursor:
    tools: Mapping[str, Tool]
    new_id: Callable[[], str]
    char: str = ""
    held: list[str] = attrs.field(factory=list)  # not told yet; the last of it is `char`
    pieces: list[Piece] = attrs.field(factory=list)
    calls: int = 0
    open: bool = False  # a call is told, and has not ended

    # what comes out

    def tell(self, kind: type[Text] | type[Reasoning], keep: int) -> None:
        """Tells what is held, all but `keep` characters at its end."""
        end = len(self.held) - keep
        if end > 0:
            self.pieces.append(kind("".join(self.held[:end])))
            self.drop(keep)

    def drop(self, keep: int = 0) -> None:
        del self.held[: len(self.held) - keep]

    def known(self, name: str) -> None:
        if name not in self.tools:
            raise Broken

    def start(self, name: str) -> None:
        self.known(name)
        self.pieces.append(CallStart(self.calls, self.new_id(), name))
        self.calls += 1
        self.open = True

    def argue(self, fragment: str, keep: int = 0) -> None:
        """Tells a part of the arguments; `keep` is 1 where `char` is not in it."""
        self.pieces.append(Arguments(self.calls - 1, fragment))
        self.drop(keep)

    def end(self) -> None:
        """The call ends with `char`, though nothing more may be to tell."""
        self.open = False
        self.drop()

    # what goes in

    def blanks(self) -> Steps[str]:
        found = ""
        while self.char.isspace():
            found += self.char
            yield
        return found

    def word(self) -> Steps[str]:
        """A name, up to the character that is no part of one."""
        found = ""
        while self.char.isalnum() or (self.char and self.char in "_-."):
            found += self.char
            yield
        if not found:
            raise Broken
        return found

    def expect(self, text: str) -> Steps[None]:
        for char in text:
            if self.char != char:
                raise Broken
            yield

    def until(self, mark: str) -> Steps[str]:
        """What stands before a mark, whose last character is looked at then."""
        found: list[str] = []
        while True:
            if not self.char:
                raise Broken
            found.append(self.char)
            if self.char == mark[-1] and "".join(found[-len(mark) :]) == mark:
                return "".join(found[: -len(mark)])
            yield
