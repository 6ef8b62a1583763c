"""JSON schemas of tools as pieces of a grammar for llguidance, in its dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from umbel.server.tools.offers import Tool

# One blank, or a new line with its indent, as elsewhere: JSON has no limit to them.
_BLANKS = {"x-guidance": {"whitespace_pattern": r"( |\n[ \t]{0,20})"}}
_OTHERS = ("patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if")
_DEFINITIONS = ("$defs", "definitions")


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def arguments(tool: Tool) -> str:
    """All arguments as one object, of those only that the schema names."""
    schema = dict(tool.parameters)
    if "properties" in schema and not any(key in schema for key in _OTHERS):
        schema.setdefault("additionalProperties", False)
    return f"%json {json.dumps(_BLANKS | schema)}"


def parameter(tool: Tool, key: str) -> str:
    """One parameter by itself; what its schema refers to goes with it."""
    schema = tool.properties[key]
    if isinstance(schema, Mapping):
        more = {k: tool.parameters[k] for k in _DEFINITIONS if k in tool.parameters}
        schema = {**_BLANKS, **more, **schema}
    return f"%json {json.dumps(schema)}"


def kinds(tool: Tool, key: str) -> set[str]:
    """The types that a parameter may have, as far as its schema tells them."""
    return _kinds(tool.properties.get(key), tool.parameters, 8)


def _kinds(schema: Any, root: Any, depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target = root
        for part in reference[2:].split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        return _kinds(target, root, depth - 1)
    found = schema.get("type")
    named = {x for x in (found if isinstance(found, list) else [found]) if isinstance(x, str)}
    for allowed in _list(schema, "enum"):
        named.add({str: "string", type(None): "null"}.get(type(allowed), "any"))
    for inner in _list(schema, "anyOf") + _list(schema, "oneOf"):
        named |= _kinds(inner, root, depth - 1)
    return named


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []
