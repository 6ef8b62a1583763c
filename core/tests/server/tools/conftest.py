"""Two tools, and an answer taken apart: its text, its thoughts, its calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
from umbel.server.tools import (
    Arguments,
    CallStart,
    Family,
    Piece,
    Reasoning,
    Text,
    Tool,
    checked_tools,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "exact": {"type": "boolean"},
        "more": {"$ref": "#/$defs/More"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
    "$defs": {"More": {"type": "object", "properties": {"tags": {"type": "array"}}}},
}


@attrs.define
class Answer:
    """All that the pieces say, and each piece by itself."""

    pieces: list[Piece] = attrs.field(factory=list)
    text: str = ""
    reasoning: str = ""
    names: list[str] = attrs.field(factory=list)
    ids: list[str] = attrs.field(factory=list)
    arguments: list[str] = attrs.field(factory=list)

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self.pieces.append(piece)
            match piece:
                case Text(text):
                    self.text += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(index, number, name):
                    assert index == len(self.names)
                    self.names.append(name)
                    self.ids.append(number)
                    self.arguments.append("")
                case Arguments(index, fragment):
                    assert index == len(self.names) - 1
                    self.arguments[index] += fragment

    @property
    def order(self) -> list[str]:
        """What came, in order: texts, and names of calls."""
        found: list[str] = []
        for piece in self.pieces:
            match piece:
                case Text(text) | Reasoning(text):
                    found.append(text)
                case CallStart(_, _, name):
                    found.append(f"call {name}")
        return found

    def told(self) -> tuple[Any, ...]:
        return self.text, self.reasoning, self.names, self.ids, self.arguments


Parse = Callable[..., Answer]


@pytest.fixture(scope="session")
def tools() -> tuple[Tool, ...]:
    functions = [
        {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA},
        {"name": "now"},
    ]
    return checked_tools([{"type": "function", "function": f} for f in functions])


@pytest.fixture(scope="session")
def parse(tools: tuple[Tool, ...]) -> Parse:
    def run(family: Family, *pushes: str, offered: Any = tools, **how: Any) -> Answer:
        numbers = itertools.count()
        parser = family.parser(offered, new_id=lambda: f"id{next(numbers)}", **how)
        answer = Answer()
        for text in pushes:
            answer.add(parser.push(text))
        answer.add(parser.finish())
        return answer

    return run
