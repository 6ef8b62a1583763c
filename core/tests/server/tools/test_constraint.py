"""What a demanded call must look like, told to llguidance and held against texts."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher, LLTokenizer
from umbel.extras.grammar import checked
from umbel.sampling import Settings
from umbel.server.tools import FAMILIES, checked_choice, checked_tools, constraint

BYTES = LLTokenizer("byte")
REQUIRED = "required"
NAMED = {"type": "function", "function": {"name": "now"}}
FULL = {"city": 'a "b" {}', "days": 3, "unit": "c", "exact": True, "more": {"tags": ["x", 1]}}
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)


def obeyed(family, tools, choice, text, parallel=True):
    """Whether a text is one that the engine would let end."""
    field, given = constraint(family, tools, checked_choice(choice, tools), parallel)
    settings = Settings(**{field: given})
    matcher = LLMatcher(BYTES, checked(*settings.constraint))
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@every
@pytest.mark.parametrize(
    "calls",
    [
        [("now", {})],
        [("get_weather", {"city": ""})],
        [("get_weather", {"city": "Zürich 😀", "maybe": "x"})],
        [("get_weather", FULL)],
        [("get_weather", FULL), ("now", {}), ("get_weather", {"city": "x", "exact": False})],
    ],
)
def test_what_the_family_writes_obeys_and_is_read(family, calls, tools, parse):
    text = family.write(calls)
    assert obeyed(family, tools, REQUIRED, text)
    answer = parse(family, text)
    told = zip(answer.names, map(json.loads, answer.arguments), strict=True)
    assert (list(told), answer.text) == (calls, "")
    assert obeyed(family, tools, REQUIRED, text, parallel=False) == (len(calls) == 1)


@every
@pytest.mark.parametrize(
    "calls",
    [
        [("get_weather", {})],
        [("get_weather", {"days": 3})],
        [("get_weather", {"city": "x", "days": "three"})],
        [("get_weather", {"city": "x", "unit": "k"})],
        [("get_weather", {"city": "x", "more": [1]})],
        [("get_weather", {"city": "x", "invented": 1})],
        [("now", {"invented": 1})],
        [("missing", {"city": "x"})],
    ],
)
def test_what_is_not_in_the_schema_does_not_obey(family, calls, tools):
    assert not obeyed(family, tools, REQUIRED, family.write(calls))


@every
def test_nothing_but_calls_obeys(family, tools):
    text = family.write([("now", {})])
    for bad in ("", "now", f"Well, {text}", f"{text} Well", text[1:], text[:-1], text * 20):
        assert not obeyed(family, tools, REQUIRED, bad)


@every
def test_a_named_tool_is_the_only_one(family, tools):
    assert obeyed(family, tools, NAMED, family.write([("now", {})]))
    assert not obeyed(family, tools, NAMED, family.write([("get_weather", {"city": "x"})]))


@every
@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_a_free_answer_has_no_constraint(family, choice, tools):
    for parallel in (False, True):
        assert constraint(family, tools, checked_choice(choice, tools), parallel) is None


@every
@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({}, {}, {"a": 1}),
        ({"properties": {"a": {"type": "number"}}}, {}, {"b": 1}),
        ({"properties": {'ä "b" 😀': {"type": "number"}}}, {'ä "b" 😀': 1.5}, {"b": 1}),
        ({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}},
         {"a": [1, 2]}, {"a": ["x"]}),
        ({"properties": {k: {"type": "integer"} for k in "abc"}, "required": ["b"]},
         {"b": 1, "c": 2}, {"a": 1, "c": 2}),
        ({"properties": {k: {"type": "integer"} for k in "abc"}}, {"a": 1, "c": 2}, {"d": 1}),
        ({"properties": {k: {"type": "integer"} for k in "abc"}}, {"c": 2}, {"c": None}),
    ],
)  # fmt: skip
def test_schemas(family, parameters, good, bad):
    tools = checked_tools([{"function": {"name": "f", "parameters": parameters}}])
    assert obeyed(family, tools, REQUIRED, family.write([("f", good)]))
    assert not obeyed(family, tools, REQUIRED, family.write([("f", bad)]))


def test_many_tools_of_usual_schemas_are_no_problem():
    """As pydantic writes them: titles, defaults, descriptions, a $schema."""
    leaf = {"type": "string", "title": "A", "description": "x::=y\nz ::= a", "default": "b"}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": leaf}}
    tools = checked_tools(
        [{"function": {"name": f"f-{i}", "parameters": schema}} for i in range(128)]
    )
    for family in FAMILIES:
        assert obeyed(family, tools, REQUIRED, family.write([("f-127", {"a": "c"})]))
