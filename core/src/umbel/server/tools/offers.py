"""What a request says of tools: which there are, and which may or must be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import attrs

from umbel.errors import OptionError

MOST = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}  # OpenAI's "no parameters"


@attrs.frozen
class Tool:
    """A function: `parameters` is the JSON schema of its arguments, an object.

    `function` is all that the request says of it, in its order: templates show it.
    """

    name: str
    parameters: Mapping[str, Any] = attrs.field(eq=False)
    function: Mapping[str, Any] = attrs.field(eq=False, repr=False)

    @property
    def told(self) -> dict[str, Any]:
        """As a chat template gets it."""
        return {"type": "function", "function": dict(self.function)}

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of its parameters, each by itself."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}


@attrs.frozen
class Choice:
    """Whether a call may or must come, and the names of the tools that it may go to."""

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] = ()


def checked_tools(value: object, where: str = "tools") -> tuple[Tool, ...]:
    """The `tools` of a request, or, with that name as `where`, its deprecated `functions`."""
    given = [] if value is None else value
    if not isinstance(given, list) or len(given) > MOST:
        raise _bad(where, f"a list of at most {MOST}", given)
    tools: list[Tool] = []
    for i, one in enumerate(given):
        at = f"{where}[{i}]"
        if where == "functions":
            tools.append(_function(one, at))
            continue
        tool = _object(one, at)
        if tool.get("type", "function") != "function":
            _refuse(f"{at}.type", "'function', the only kind of tool here", tool["type"])
        tools.append(_function(tool.get("function"), f"{at}.function"))
    names = [tool.name for tool in tools]
    if twice := [i for i, name in enumerate(names) if name in names[:i]]:
        inner = "" if where == "functions" else ".function"
        msg = "two tools have the same name"
        raise OptionError(msg, where=f"{where}[{twice[0]}]{inner}.name", got=names[twice[0]])
    return tuple(tools)


def _function(value: object, where: str) -> Tool:
    function = _object(value, where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse(f"{where}.name", "1 to 64 letters, digits, _ and -", name)
    if not isinstance(function.get("description"), str | None):
        _refuse(f"{where}.description", "a text", function["description"])
    schema = _schema(function.get("parameters"), f"{where}.parameters")
    return Tool(name, schema, {**function, "parameters": schema})


def _schema(value: object, where: str) -> Mapping[str, Any]:
    """A schema of an object; what else it says is left to those who read schemas."""
    schema = {} if value is None else _object(value, where)
    for key, kind, expected in (
        ("properties", dict, "an object"),
        ("required", list, "a list"),
    ):
        if not isinstance(schema.get(key, kind()), kind):
            _refuse(f"{where}.{key}", expected, schema[key])
    if schema.get("type", "object") != "object":
        _refuse(f"{where}.type", "'object'", schema["type"])
    if not schema:
        return _NOTHING
    return schema if "type" in schema else {"type": "object", **schema}


def checked_choice(value: object, tools: Sequence[Tool], where: str = "tool_choice") -> Choice:
    """The `tool_choice` of a request; the deprecated `function_call` reads the same."""
    names = tuple(tool.name for tool in tools)
    match value:
        case None | "auto":
            return Choice("auto" if names else "none", names)
        case "none":
            return Choice("none")
        case "required" if names:
            return Choice("required", names)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*some]}}:
            chosen = tuple(name for name in names if name in map(_named, some))
            if mode in ("auto", "required") and some and len(chosen) == len(some):
                return Choice(mode, chosen)
        case _ if (name := _named(value)) in names and name is not None:
            return Choice("required", (name,))
    known = ", ".join(map(repr, names)) or "none are given"
    raise _bad(where, f"'none', 'auto', 'required', or one of the tools: {known}", value)


def _named(value: object) -> str | None:
    """The name in {"type": "function", "function": {"name": ..}}, or in {"name": ..}."""
    match value:
        case {"type": "function", "function": {"name": str(name)}} | {"name": str(name)}:
            return name
    return None


def checked(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], Choice]:
    """The tools of a request's body and the choice, in the names of today or of before."""
    if body.get("tools") is None and body.get("functions") is not None:
        tools = checked_tools(body["functions"], "functions")
    else:
        tools = checked_tools(body.get("tools"))
    old = body.get("tool_choice") is None and body.get("function_call") is not None
    where = "function_call" if old else "tool_choice"
    return tools, checked_choice(body.get(where), tools, where)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    return value


def _bad(where: str, expected: str, got: object) -> OptionError:
    msg = f"{where} is missing" if got is None else f"the field {where} cannot be used"
    return OptionError(msg, where=where, expected=expected, got=f"{got!r:.80}")


def _refuse(where: str, expected: str, got: object) -> NoReturn:
    raise _bad(where, expected, got)
