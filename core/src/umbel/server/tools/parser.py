"""An answer taken apart while it comes: what was thought, text, and calls.

Of text only what could become a mark is held back. After a mark a call of any form is read:
the marks differ between families, and what follows them tells itself. A tool that is not known
ends the attempt, and what was held is text after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.server.tools import json_form, python_form, xml_form
from umbel.server.tools.cursor import Broken, Cursor, Steps
from umbel.server.tools.offers import Tool
from umbel.server.tools.pieces import Piece, Reasoning, Text, joined, new_id

THINK, THOUGHT = "<think>", "</think>"
LONGEST = 32  # of the marks, by far
BARE = "{"  # the mark of calls that have none: only at the beginning of an answer


class Parser:
    """Of one answer. Calls stand between one of `opens` and, perhaps, one of `closes`.

    With `bare`, an answer may also be a call from its first bracket on. With `thinking`, it
    begins within thoughts, which the prompt has opened.

    When the answer ends within a call, its arguments stay as far as they came. Where they turn
    out broken after they were told in part, what follows is text.
    """

    def __init__(
        self,
        opens: Sequence[str],
        closes: Sequence[str],
        tools: Sequence[Tool],
        *,
        bare: bool = False,
        thinking: bool = False,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self._opens = tuple(opens) if tools else ()
        self._closes = tuple(closes)
        self._bare = (BARE,) if bare and tools else ()
        self._cursor = Cursor({tool.name: tool for tool in tools}, new_id)
        self._steps = self._answer(thinking)
        next(self._steps)

    def push(self, text: str) -> list[Piece]:
        cursor = self._cursor
        for char in text:
            cursor.char = char
            cursor.held.append(char)
            next(self._steps)
        return self._taken()

    def finish(self) -> list[Piece]:
        """No more text comes: what was held is told."""
        self._cursor.char = ""
        next(self._steps, None)
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._cursor.pieces = self._cursor.pieces, []
        return joined(pieces)

    def _answer(self, thinking: bool) -> Steps[None]:
        cursor = self._cursor
        yield
        if thinking:
            yield from self._thoughts()
        first = (*self._bare, *([] if thinking else [THINK]))
        called = False  # just before
        while mark := (yield from self._text(first, called)):
            called = called and mark in first
            if mark == THINK:
                cursor.drop()
                yield
                yield from self._thoughts()
                first = self._bare
            elif called:
                cursor.drop()
                yield
                first = ()
            else:
                called = yield from self._calls(mark)
                first = self._closes if called else ()

    def _thoughts(self) -> Steps[None]:
        """The blanks at both sides of the marks are not told."""
        cursor = self._cursor
        yield from cursor.blanks()
        cursor.drop(len(cursor.char))
        if (yield from self._scan(Reasoning, (THOUGHT,))):
            cursor.drop()
            yield
        yield from cursor.blanks()
        cursor.drop(len(cursor.char))

    def _text(self, first: Sequence[str], called: bool) -> Steps[str]:
        """Tells text until there is a mark; one of `first` counts only if no text came.

        Blanks are told with the text that follows. Those before a call, or around the mark
        that ends it, belong to the calls.
        """
        yield from self._cursor.blanks()
        return (yield from self._scan(Text, self._opens, first, called))

    def _scan(
        self,
        kind: type[Text] | type[Reasoning],
        marks: Sequence[str],
        first: Sequence[str] = (),
        called: bool = False,
    ) -> Steps[str]:
        """Tells what is no mark, until one is whole: it is held, and given; "" at the end."""
        cursor, known = self._cursor, (*marks, *first)
        before = "".join(cursor.held[: len(cursor.held) - len(cursor.char)])
        seen = before.lstrip()  # the beginning of a mark, behind blanks
        lead = len(before) - len(seen)
        while cursor.char:
            seen = _beginning(seen + cursor.char, known)
            if seen in known:
                return seen
            if len(cursor.held) > lead + len(seen):  # there is text
                lead, known, called = 0, (*marks,), False
                seen = _beginning(seen, known)
                cursor.tell(kind, keep=len(seen))
            yield
        if called:  # blanks, or a mark that was cut off
            cursor.drop()
        cursor.tell(kind, keep=0)
        return ""

    def _calls(self, mark: str) -> Steps[bool]:
        """Calls that begin after a mark; False: it was none, or the last was broken."""
        cursor = self._cursor
        if mark != BARE:
            yield
        try:
            yield from self._list(mark)
        except Broken:
            if cursor.open and not cursor.char:
                cursor.drop()
            # what was read for it may have begun a mark
            seen = _beginning("".join(cursor.held[-LONGEST:]), self._opens)
            cursor.tell(Text, keep=len(seen or cursor.char))
            cursor.open = False
            return False
        return True

    def _list(self, mark: str) -> Steps[None]:
        """One call or several, in a list or parted by blanks, commas or semicolons."""
        cursor = self._cursor
        if mark == xml_form.OPEN:
            yield from xml_form.read(cursor, opened=True)
            return
        yield from cursor.blanks()
        listed = cursor.char == "["
        if listed:
            yield
            yield from cursor.blanks()
        while True:
            braced = cursor.char == "{"
            yield from self._call(mark)
            yield from cursor.blanks()
            parted = cursor.char in (",", ";")
            if parted:
                yield
                yield from cursor.blanks()
            if listed and cursor.char == "]":
                cursor.drop()
                yield
                return
            if not cursor.char:  # cut off: what parts two calls is no text
                cursor.drop()
                return
            goes_on = cursor.char == "{" if braced else cursor.char.isalpha()
            if not (parted or goes_on):
                return

    def _call(self, mark: str) -> Steps[None]:
        cursor = self._cursor
        if cursor.char == "{":
            yield from json_form.read(cursor, bare=mark == BARE)
        elif cursor.char == "<":
            yield from xml_form.read(cursor, opened=False)
        else:
            name = yield from cursor.word()
            if cursor.char == "(":
                yield from python_form.read(cursor, name)
            else:
                yield from json_form.read_named(cursor, name)


def _beginning(text: str, marks: Sequence[str]) -> str:
    """The longest end of a text with which a mark may begin."""
    while text and not any(mark.startswith(text) for mark in marks):
        text = text[1:]
    return text
