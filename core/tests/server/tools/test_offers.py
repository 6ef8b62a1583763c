"""`tools` and `tool_choice` of a request, and what went before them."""

from __future__ import annotations

import json

import pytest
from umbel.errors import OptionError
from umbel.server.tools import Choice, checked, checked_choice, checked_tools

GOOD = {"type": "function", "function": {"name": "a-B_9"}}


def tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


def test_a_tool_is_read():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    (one,) = checked_tools([tool(description="It does.", parameters=schema, strict=True)])
    assert (one.name, one.parameters) == ("f", schema)
    assert one.told == tool(description="It does.", parameters=schema, strict=True)
    turned = {"parameters": {"properties": {}, "type": "object"}, "name": "f"}
    (same,) = checked_tools([{"function": turned}])
    assert json.dumps(same.told["function"]) == json.dumps(turned)
    (bare,) = checked_tools([GOOD])
    assert bare.told["function"]["parameters"] == {"type": "object", "properties": {}}
    (untyped,) = checked_tools([tool(parameters={"properties": {}})])
    assert untyped.parameters["type"] == "object"


@pytest.mark.parametrize("value", [None, []])
def test_no_tools(value):
    assert checked_tools(value) == ()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({}, "tools"),
        ("x", "tools"),
        ([tool(name=f"f{i}") for i in range(129)], "tools"),
        ([None], "tools[0]"),
        ([GOOD, "x"], "tools[1]"),
        ([{"type": "retrieval"}], "tools[0].type"),
        ([{"type": None}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([GOOD, {"function": {}}], "tools[1].function.name"),
        ([tool(name="a b")], "tools[0].function.name"),
        ([tool(name="")], "tools[0].function.name"),
        ([tool(name="a" * 65)], "tools[0].function.name"),
        ([tool(name="a\n")], "tools[0].function.name"),
        ([tool(name="é")], "tools[0].function.name"),
        ([tool(name=1)], "tools[0].function.name"),
        ([GOOD, tool(), GOOD], "tools[2].function.name"),
        ([tool(description=1)], "tools[0].function.description"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters=True)], "tools[0].function.parameters"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([tool(parameters={"required": "a"})], "tools[0].function.parameters.required"),
    ],
)
def test_a_bad_tool_is_refused_where_it_stands(value, where):
    with pytest.raises(OptionError) as caught:
        checked_tools(value)
    assert caught.value.where == where


TOOLS = checked_tools([tool(name="f"), tool(name="g")])


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, Choice("auto", ("f", "g"))),
        ("auto", Choice("auto", ("f", "g"))),
        ("none", Choice("none")),
        ("required", Choice("required", ("f", "g"))),
        (tool(name="g"), Choice("required", ("g",))),
        ({"name": "g"}, Choice("required", ("g",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool()]}},
            Choice("auto", ("f",)),
        ),
    ],
)
def test_choices(value, choice):
    assert checked_choice(value, TOOLS) == choice


@pytest.mark.parametrize(
    "value",
    [
        "any",
        1,
        [],
        {},
        {"type": "function"},
        tool(name="h"),
        {"type": "function", "function": {"name": ["f"]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["auto"]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": [tool()]}},
    ],
)
def test_a_bad_choice_is_refused(value):
    with pytest.raises(OptionError, match="tool_choice") as caught:
        checked_choice(value, TOOLS)
    assert caught.value.where == "tool_choice"
    assert "'f', 'g'" in caught.value.expected


def test_choices_without_tools():
    assert checked_choice(None, ()) == Choice("none")
    assert checked_choice("auto", ()).mode == "none"
    assert checked_choice("none", ()).mode == "none"
    for value in ("required", tool()):
        with pytest.raises(OptionError, match="tool_choice"):
            checked_choice(value, ())


def test_the_names_of_before():
    tools, choice = checked({"functions": [{"name": "f"}], "function_call": {"name": "f"}})
    assert ([t.name for t in tools], choice) == (["f"], Choice("required", ("f",)))
    assert tools[0].told["type"] == "function"
    assert checked({"functions": [{"name": "f"}], "function_call": "none"})[1].mode == "none"
    for body, where in [
        ({"functions": [{}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ]:
        with pytest.raises(OptionError) as caught:
            checked(body)
        assert caught.value.where == where
    assert checked({}) == ((), Choice("none"))
    assert checked({"tools": [GOOD], "tool_choice": "auto"})[1] == Choice("auto", ("a-B_9",))
