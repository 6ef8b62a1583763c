"""Messages of OpenAI's API in the form in which chat templates expect them.

What a template does not show of tools is put where it does look; what it would refuse (several
calls in a message, long ids) is told in the way that it takes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from umbel.server.tools.families import Family
from umbel.server.tools.offers import Tool

Message: TypeAlias = dict[str, Any]
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def messages_for_template(
    messages: Sequence[Any], family: Family, tools: Sequence[Tool] = ()
) -> list[Any]:
    """The messages, as copies; with `tools`, those are told where the template does not.

    What is no message is passed on: the template's own check refuses it.
    """
    made = [_today(m, i) if isinstance(m, Mapping) else m for i, m in enumerate(messages)]
    _name_results(made)
    if family.short_ids:
        _shorten(made)
    if family.single:
        made = [*_apart(made)]
    if not family.shows_results:
        made = [*_results_as_text(made)]
    if not family.shows_calls:
        made = [_calls_as_text(m, family) if _calls(m) else m for m in made]
    if tools and family.tells != "variable":
        made = _told(made, family, tools)
    return made


def _today(message: Mapping[str, Any], index: int) -> Message:
    """With `tool_calls` for the deprecated `function_call`, arguments as objects, no nulls."""
    made = {**message}
    if made.get("content") is None:
        made["content"] = ""
    old = made.pop("function_call", None)
    if isinstance(old, Mapping) and not made.get("tool_calls"):
        number = f"call_{index}"
        made["tool_calls"] = [{"id": number, "type": "function", "function": old}]
    if made.get("role") == "function":
        made["role"] = "tool"
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = [_read(call) for call in made["tool_calls"]]
    elif "tool_calls" in made and made["tool_calls"] is None:
        del made["tool_calls"]
    return made


def _read(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _calls(message: Any) -> list[Any]:
    """The calls of a message that are what they should be."""
    given = message.get("tool_calls") if isinstance(message, Mapping) else None
    found = given if isinstance(given, list) else []
    good = [
        c for c in found if isinstance(c, Mapping) and isinstance(c.get("function"), Mapping)
    ]
    return good if len(good) == len(found) else []


def _is_result(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "tool"


def _name_results(messages: Iterable[Any]) -> None:
    """A result names its call by id, or (before) by function; templates want either."""
    names: dict[Any, Any] = {}
    for message in messages:
        for call in _calls(message):
            names[str(call.get("id"))] = call["function"].get("name")
        if _is_result(message):
            number, name = message.get("tool_call_id"), message.get("name")
            if name is None and names.get(str(number)) is not None:
                message["name"] = names[str(number)]
            if number is None and name is not None:
                found = [n for n in names if names[n] == name]
                message |= {"tool_call_id": found[-1]} if found else {}


def _shorten(messages: Iterable[Any]) -> None:
    def short(number: Any) -> Any:
        if not isinstance(number, str) or _SHORT.fullmatch(number):
            return number
        return hashlib.sha256(number.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    for message in messages:
        if calls := _calls(message):
            message["tool_calls"] = [{**c, "id": short(c.get("id"))} for c in calls]
        if _is_result(message) and "tool_call_id" in message:
            message["tool_call_id"] = short(message["tool_call_id"])


def _apart(messages: Sequence[Any]) -> Iterable[Any]:
    """Each call in a message of its own, with its result after it."""
    at = 0
    while at < len(messages):
        message, calls = messages[at], _calls(messages[at])
        at += 1
        if len(calls) < 2:
            yield message
            continue
        results = []
        while at < len(messages) and _is_result(messages[at]):
            results.append(messages[at])
            at += 1
        for i, call in enumerate(calls):
            yield {**message, "content": "" if i else message["content"], "tool_calls": [call]}
            own = [r for r in results if r.get("tool_call_id") == call.get("id")]
            yield from own
            results = [r for r in results if r not in own]
        yield from results


def _results_as_text(messages: Iterable[Any]) -> Iterable[Any]:
    """Results in messages of the user, those of one turn in one: roles must alternate."""
    texts: list[str] = []
    for message in messages:
        if _is_result(message):
            texts.append(f"<tool_response>\n{_text(message['content'])}\n</tool_response>")
            continue
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}
            texts = []
        yield message
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _calls_as_text(message: Message, family: Family) -> Message:
    pairs = [
        (str(c["function"].get("name")), c["function"].get("arguments"))
        for c in _calls(message)
    ]
    written = family.write(
        [(name, a if isinstance(a, dict) else {"text": a}) for name, a in pairs]
    )
    made = {key: found for key, found in message.items() if key != "tool_calls"}
    content = _text(made["content"])
    return {**made, "content": f"{content}\n{written}" if content else written}


def _told(messages: list[Any], family: Family, tools: Sequence[Tool]) -> list[Any]:
    """The messages, of which the first tells of the tools."""
    roles = ("system", "developer") if family.takes_system else ("user",)
    first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
    given = first.get("role") in roles
    telling = {**first} if given else {"role": roles[0], "content": ""}
    if family.tells == "message":
        telling["tools"] = json.dumps([t.function for t in tools], ensure_ascii=False)
    else:
        parts = [_text(telling["content"]), family.prompt(tools)]
        parts = parts if family.takes_system else parts[::-1]
        telling["content"] = "\n\n".join(part for part in parts if part)
    return [telling, *(messages[1:] if given else messages)]


def _text(content: Any) -> str:
    """A content that may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(
        str(p["text"]) if isinstance(p, Mapping) and "text" in p else str(p) for p in parts
    )
