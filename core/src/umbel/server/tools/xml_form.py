"""Calls as Qwen's coders write them, with values as they are, without quotes or escapes:

<function=f>
<parameter=a>
x
</parameter>
</function>
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from umbel.server.tools import schemas, values
from umbel.server.tools.cursor import Cursor, Steps
from umbel.server.tools.offers import Tool

OPEN = "<function="
_CLOSE = "</parameter>"


def read(cursor: Cursor, opened: bool) -> Steps[None]:
    """From its first mark, or behind it where that is read, to behind its last."""
    if not opened:
        yield from cursor.expect(OPEN)
    name = yield from cursor.word()
    cursor.known(name)
    yield from cursor.expect(">")
    before = "{"
    while True:
        yield from cursor.blanks()
        yield from cursor.expect("<")
        if cursor.char == "/":
            break
        yield from cursor.expect("parameter=")
        key = yield from cursor.until(">")
        yield
        found = yield from cursor.until(_CLOSE)
        if before == "{":
            cursor.start(name)
        found = found.removeprefix("\n").removesuffix("\n")
        told = _value(found, schemas.kinds(cursor.tools[name], key))
        cursor.argue(f"{before}{json.dumps(key)}: {told}")
        before = ", "
        yield
    yield from cursor.expect("/function")
    if cursor.char == ">":
        if before == "{":
            cursor.start(name)
        cursor.argue("{}" if before == "{" else "}")
        cursor.end()
    yield from cursor.expect(">")


def _value(found: str, kinds: set[str]) -> str:
    """The JSON of a parameter that may be of these types; of none, it is a text."""
    if "null" in kinds and found in ("null", "None"):
        return "null"
    read = values.read(found) if kinds and "string" not in kinds else None
    return values.dumped(found) if read is None else read


class XmlForm:
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        written = {
            key: found if isinstance(found, str) else values.dumped(found)
            for key, found in arguments.items()
        }
        lines = "".join(f"<parameter={k}>\n{v}\n{_CLOSE}\n" for k, v in written.items())
        return f"{OPEN}{name}>\n{lines}</function>"

    def rules(self, tool: Tool, rule: str) -> list[str]:
        lines, items = [], ""
        for i, (key, schema) in enumerate(tool.properties.items()):
            kinds, value = schemas.kinds(tool, key), f"{rule}_v{i}"
            head = schemas.literal(f"<parameter={key}>\n")
            tail = schemas.literal(f"\n{_CLOSE}\n")
            if choices := _choices(schema):
                lines.append(f"{value}: ({choices}) {tail}")
            elif kinds and "string" not in kinds:
                lines += [f"{value}: {value}_j {tail}"]
                lines += [f"{value}_j: {schemas.parameter(tool, key)}"]
            else:  # not in quotes, so that no JSON schema can tell it
                lines.append(f"{value}[suffix={tail}]: /(?s:.*)/")
            optional = key not in tool.parameters.get("required", ())
            items += f" ({head} {value})" + "?" * optional
        head = schemas.literal(f"{OPEN}{tool.name}>\n")
        return [f"{rule}: {head}{items} {schemas.literal('</function>')}", *lines]


def _choices(schema: Any) -> str:
    """The texts out of which a parameter must be, if there are such."""
    allowed = schema.get("enum") if isinstance(schema, Mapping) else None
    if not isinstance(allowed, list) or not all(isinstance(x, str) for x in allowed):
        return ""
    return " | ".join(map(schemas.literal, allowed))
