"""Calls like Python's: f(a="x", b=[1, 2]). They are read, never run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from umbel.server.tools import schemas, values
from umbel.server.tools.cursor import Broken, Cursor, Steps
from umbel.server.tools.offers import Tool


def read(cursor: Cursor, name: str) -> Steps[None]:
    """From the bracket behind the name to behind its last."""
    cursor.known(name)
    yield
    yield from cursor.blanks()
    before = "{"
    while cursor.char != ")":
        key = yield from cursor.word()
        yield from cursor.blanks()
        yield from cursor.expect("=")
        yield from cursor.blanks()
        if before == "{":
            cursor.start(name)
        cursor.argue(f"{before}{json.dumps(key)}: ", len(cursor.char))
        yield from values.value(cursor, cursor.argue)
        before = ", "
        yield from cursor.blanks()
        if cursor.char == ",":
            yield
            yield from cursor.blanks()
        elif cursor.char != ")":
            raise Broken
    if before == "{":
        cursor.start(name)
    cursor.argue("{}" if before == "{" else "}")
    cursor.end()
    yield


class PythonForm:
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name}({', '.join(f'{k}={_python(v)}' for k, v in arguments.items())})"

    def rules(self, tool: Tool, rule: str) -> list[str]:
        """Parameters in the order of the schema; those that are not required may be missing.

        Values are told by JSON schemas; of Python's own words only plain ones can be."""
        names = list(tool.properties)
        lines = [f"{rule}: {schemas.literal(tool.name + '(')} {rule}_f0 {schemas.literal(')')}"]
        for i, key in enumerate(names):
            # f: nothing before it, so no comma; m: something is.
            item = f"{schemas.literal(key + '=')} {rule}_v{i} {rule}_m{i + 1}"
            optional = key not in tool.parameters.get("required", ())
            lines.append(f"{rule}_f{i}: {item}" + f" | {rule}_f{i + 1}" * optional)
            lines.append(f'{rule}_m{i}: ", " {item}' + f" | {rule}_m{i + 1}" * optional)
            plain = schemas.kinds(tool, key) == {"boolean"}
            value = '"True" | "False"' if plain else schemas.parameter(tool, key)
            lines.append(f"{rule}_v{i}: {value}")
        return [*lines, f'{rule}_f{len(names)}: ""', f'{rule}_m{len(names)}: ""']


def _python(found: Any) -> str:
    """As Python writes it, in the quotes of JSON."""
    if isinstance(found, dict):
        return f"{{{', '.join(f'{_python(k)}: {_python(v)}' for k, v in found.items())}}}"
    if isinstance(found, list):
        return f"[{', '.join(map(_python, found))}]"
    return values.dumped(found) if isinstance(found, str) else repr(found)
