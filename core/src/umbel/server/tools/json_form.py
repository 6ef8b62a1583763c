"""Calls as JSON: {"name": "f", "arguments": {..}}, the keys in any order; or f[ARGS]{..}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from umbel.server.tools import schemas, values
from umbel.server.tools.cursor import Broken, Cursor, Steps
from umbel.server.tools.offers import Tool

NAMES = ("name", "function")
ARGUMENTS = ("arguments", "parameters")
_FIRST = (*NAMES, *ARGUMENTS, "type", "id")  # what a call without marks can begin with


def read(cursor: Cursor, bare: bool) -> Steps[None]:
    """From its first bracket to behind its last."""
    name, told = "", False
    arguments: str | None = None
    yield
    while True:
        yield from cursor.blanks()
        key = yield from values.text(cursor)
        if bare and key not in _FIRST:
            raise Broken
        yield
        yield from cursor.blanks()
        yield from cursor.expect(":")
        yield from cursor.blanks()
        if key in NAMES and not name:
            name = yield from values.text(cursor)
            cursor.known(name)
            yield
        elif key in ARGUMENTS and arguments is None:
            if name and cursor.char == "{":  # told as they come
                arguments, told = "", True
                cursor.start(name)
                yield from values.value(cursor, cursor.argue)
            else:
                arguments = _object((yield from values.whole(cursor)))
        else:
            yield from values.whole(cursor)
        if name and arguments is not None and not told:
            told = True
            cursor.start(name)
            cursor.argue(arguments, len(cursor.char))
        yield from cursor.blanks()
        if cursor.char == ",":
            yield
            yield from cursor.blanks()
            if cursor.char != "}":
                continue
        if cursor.char == "}" and (told or (name and not bare)):
            break
        if not told:
            raise Broken
        cursor.open = False  # the last bracket was forgotten
        return
    if not told:
        cursor.start(name)
        cursor.argue("{}")
    cursor.end()
    yield


def read_named(cursor: Cursor, name: str) -> Steps[None]:
    """From behind the name to behind the arguments."""
    cursor.known(name)
    yield from cursor.blanks()
    while cursor.char == "[":
        yield
        mark = yield from cursor.until("]")
        yield
        if mark == "CALL_ID":
            yield from cursor.word()
        elif mark != "ARGS":
            raise Broken
    yield from cursor.blanks()
    if cursor.char != "{":
        raise Broken
    cursor.start(name)
    yield from values.value(cursor, cursor.argue)
    cursor.open = False


def _object(found: str) -> str:
    """The JSON text of an object. Some write it as a text, and nothing as null."""
    if found.startswith('"'):
        found = values.read(json.loads(found)) or ""
    if found == "null":
        return "{}"
    if not found.startswith("{"):
        raise Broken
    return found


@attrs.frozen
class JsonForm:
    key: str = "arguments"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f'{{"name": {json.dumps(name)}, "{self.key}": {values.dumped(arguments)}}}'

    def rules(self, tool: Tool, rule: str) -> list[str]:
        head = schemas.literal(f'{{"name": {json.dumps(tool.name)}, "{self.key}": ')
        return [f'{rule}: {head} {rule}_a "}}"', f"{rule}_a: {schemas.arguments(tool)}"]


class NamedForm:
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name}[ARGS]{values.dumped(arguments)}"

    def rules(self, tool: Tool, rule: str) -> list[str]:
        head = schemas.literal(f"{tool.name}[ARGS]")
        return [f"{rule}: {head} {rule}_a", f"{rule}_a: {schemas.arguments(tool)}"]
