"""Answers with calls, in each family's form, however they are cut."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from umbel.server.tools import FAMILIES, Arguments, Text, new_id

ODD = {
    "city": 'Q"uo{te}d [ü] \\ \n new\tline, <b> </tool_cal \u2028 😀',
    "days": -3,
    "exact": True,
    "more": {"tags": ["}", "{", "]", '"', "'", None, 1.5, False, [[]], {"": {}}]},
}
CALLS = [("get_weather", ODD), ("now", {})]
MARKED = [family for family in FAMILIES if not family.bare]
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
marked = pytest.mark.parametrize("family", MARKED, ids=lambda f: f.name)


def read(answer):
    return [(n, json.loads(a)) for n, a in zip(answer.names, answer.arguments, strict=True)]


@every
def test_two_calls(family, parse):
    answer = parse(family, family.write(CALLS))
    assert read(answer) == CALLS
    assert answer.text == answer.reasoning == ""
    assert answer.ids == ["id0", "id1"]


@marked
def test_text_stays_before_between_and_after_calls(family, parse):
    one = family.write(CALLS[1:])
    answer = parse(family, f"One.\n\n{one}\nTwo? {one}")
    assert answer.order == ["One.\n\n", "call now", "\nTwo? ", "call now"]
    assert parse(family, f"{one} Done.").order == ["call now", " Done."]
    assert parse(family, f"\n{one}\n\n{one}\n").order == ["call now", "call now"]


@every
@pytest.mark.parametrize("thinking", [False, True])
def test_every_single_cut_gives_the_same(family, thinking, parse):
    opened = "" if thinking else "\n<think>"
    text = f"{opened}\nFirst <b> {{\n</think>\n\n{family.write(CALLS)}\n <too late <|tool"
    whole = parse(family, text, thinking=thinking)
    assert whole.reasoning == "First <b> {\n"
    assert whole.text == "\n <too late <|tool"
    assert read(whole) == CALLS
    for cut in range(1, len(text)):
        assert parse(family, text[:cut], text[cut:], thinking=thinking).told() == whole.told()
    assert parse(family, *text, thinking=thinking).told() == whole.told()


BITS = st.sampled_from(
    [mark for f in FAMILIES for mark in (*f.opens, *f.closes)]
    + ["<think>", "</think>", "[", "]", "{", "}", "(", ")", '"', "'", "\\", ":", ",", ";", "="]
    + ["\n", " ", "a", "<", "<|", "now", "get_weather", "zzz", "[ARGS]", "[CALL_ID]", "1", "-"]
    + ['{"name": ', '"now"', '"zzz"', ', "arguments": {', ', "parameters": {"a": ', "}}", "\\u"]
    + ["<function=now>", "<parameter=a>", "</parameter>", "</function>", "true", "nul", "city="]
)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(FAMILIES) - 1), st.lists(BITS, max_size=25), st.booleans(), st.data())
@example(0, ["<think>", "<tool_call>", '{"name": ', '"now"', "}"], False, None)
def test_any_cuts_of_any_answer_give_the_same(parse, which, bits, thinking, data):
    family, text = FAMILIES[which], "".join(bits)
    whole = parse(family, text, thinking=thinking)
    assert parse(family, *text, thinking=thinking).told() == whole.told()
    if data is not None:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
        ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
        parts = [text[a:b] for a, b in ends]
        assert parse(family, *parts, thinking=thinking).told() == whole.told()
    assert all(arguments.startswith("{") for arguments in whole.arguments)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(FAMILIES) - 1), st.lists(BITS, max_size=25))
def test_an_answer_that_calls_no_known_tool_loses_no_character(parse, which, bits):
    text = "".join(bits).replace("now", "later").replace("get_weather", "get")
    text = "." + text.replace("<think>", "")
    answer = parse(FAMILIES[which], text)
    assert answer.text == text
    assert not answer.names


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(FAMILIES) - 1), st.integers())
def test_any_text_can_be_an_argument(parse, text, which, number):
    family = FAMILIES[which]
    if "</parameter>" in text:
        return
    call = ("get_weather", {"city": text, "days": number})
    assert read(parse(family, *family.write([call, call]))) == [call, call]


@every
def test_without_tools_nothing_is_a_call(family, parse):
    text = family.write(CALLS)
    assert parse(family, text, offered=()).order == [text]


@every
def test_text_comes_at_once(family, tools):
    """But for what could be the beginning of a mark."""
    parser = family.parser(tools)
    for char in "Text? {a} (b) c\n\n":
        assert parser.push(char) == [Text(char)]
    for mark in family.opens:
        parser = family.parser(tools)
        assert parser.push("a" + mark[:-1]) == [Text("a")]
        assert parser.push("\0") == [Text(mark[:-1] + "\0")]


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "granite", "phi", "lfm2"])
def test_arguments_come_with_the_characters(name, tools):
    family = next(f for f in FAMILIES if f.name == name)
    text = family.write([("get_weather", {"city": "a long name of a city"})])
    at = text.index("a long")
    parser = family.parser(tools)
    parser.push(text[:at])
    for char in "a long name":
        assert parser.push(char) == [Arguments(0, char)]


@marked
@pytest.mark.parametrize("end", range(1, 40, 3))
def test_an_answer_cut_off_before_a_call_is_known_is_text(family, end, parse):
    written = family.write([("get_weather", {"city": "x"})])
    text = f"So: {written}"[: end + 4]
    answer = parse(family, text)
    if not answer.names:
        assert answer.text == text
    else:
        assert answer.text == "So: "
        assert '{"city": "x"}'.startswith(answer.arguments[0].rstrip())


@every
def test_an_answer_cut_off_within_a_call_leaves_no_rubbish(family, parse):
    """Nor does one that ends anywhere in, or after, a second call."""
    text = family.write([("get_weather", {"city": "x", "exact": True}), ("now", {})])
    known = next(i for i in range(len(text)) if parse(family, text[:i]).names)
    second = next(i for i in range(len(text) + 1) if len(parse(family, text[:i]).names) > 1)
    for end in range(known, len(text)):
        answer = parse(family, text[:end])
        wanted = '{"city": "x", "exact": true}'
        assert wanted.startswith(answer.arguments[0])
        if end >= second:
            assert (answer.text, answer.arguments[0]) == ("", wanted)
            assert "{}".startswith(answer.arguments[1])
        elif answer.text:  # the second call, as far as it came
            assert text[:end].endswith(answer.text)
            assert answer.arguments == [wanted]


@every
def test_an_unknown_tool_is_text_and_the_next_call_counts(family, parse):
    text = family.write([("missing", {"a": 1})])
    answer = parse(family, text)
    assert (answer.text, answer.names) == (text, [])
    if not family.bare:
        after = parse(family, f"{text} {family.write(CALLS)}")
        assert after.text.strip() == text
        assert read(after) == CALLS


def test_ids_are_like_those_of_openai(tools):
    numbers = {new_id() for _ in range(50)}
    assert len(numbers) == 50
    assert all(re.fullmatch(r"call_[a-zA-Z0-9]{24}", number) for number in numbers)
    (start, _) = FAMILIES[0].parser(tools).push(FAMILIES[0].write([("now", {})]))
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", start.id)
