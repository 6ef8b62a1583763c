"""What models write besides the form in the book: read where it can mean one thing only."""

from __future__ import annotations

import json

import pytest
from umbel.server.tools import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}
F = "get_weather"
ABBREVIATIONS = {
    "@": '{"name": "now", "arguments": ',
    "%": '{"name": "now", "parameters": ',
    "«": "<|tool_call_start|>",
    "»": "<|tool_call_end|>",
}


def long(text):
    """A text without its abbreviations."""
    for sign, meant in ABBREVIATIONS.items():
        text = text.replace(sign, meant)
    return text


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        # JSON: keys in any order, or more of them; no arguments, or as a text
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', [{"a": 1}]),
        ("hermes", '<tool_call>{"id": 1, "name": "now", "arguments": {}}</tool_call>', [{}]),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', [{}]),
        ("hermes", '<tool_call>@null}</tool_call>', [{}]),
        ("hermes", r'<tool_call>@"{\"a\": 1}"}</tool_call>', [{"a": 1}]),
        ("hermes", '<tool_call>%{"a": 1}}</tool_call>', [{"a": 1}]),
        # marks: none at the end, a list within, two calls within
        ("hermes", '<tool_call>\n@{"a": 1}}', [{"a": 1}]),
        ("hermes", '<tool_call>@{}\n</tool_call>', [{}]),
        ("hermes", '<tool_call>[{"name": "now"}, {"name": "now"},]</tool_call>', [{}, {}]),
        ("hermes", '<tool_call>{"name": "now"}\n{"name": "now"}</tool_call>', [{}, {}]),
        # what Python and careless models write
        ("hermes", "<tool_call>{'name': 'now', 'arguments': {'a': None}}", [{"a": None}]),
        ("hermes", '<tool_call>@{"a": 1,},}</tool_call>', [{"a": 1}]),
        ("hermes", '<tool_call>@{"a": [True, 1,],}}', [{"a": [True, 1]}]),
        ("hermes", '<tool_call>@{"a": "x\ny"}}', [{"a": "x\ny"}]),
        ("hermes", r'<tool_call>@{"a": "\d\u12"}}', [{"a": r"\d\u12"}]),
        ("hermes", r'<tool_call>@{"a": "\u00e9\ud83d\ude00"}}', [{"a": "é😀"}]),
        # Llama
        ("llama", '<|python_tag|>%{"a": 1}}', [{"a": 1}]),
        ("llama", 'Well: <|python_tag|>%{}}', [{}]),
        ("llama", '\n{"type": "function", "name": "now", "parameters": {}}', [{}]),
        ("llama", '%{}};%{}}', [{}, {}]),
        ("llama", '%{}}\n%{}};', [{}, {}]),
        # Mistral
        ("mistral", '[TOOL_CALLS] [@{}, "id": "abc123def"}]', [{}]),
        ("mistral", '[TOOL_CALLS]now[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', [{"a": 1}, {}]),
        ("mistral-named", '[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{"a": 1}', [{"a": 1}]),
        ("mistral-named", '[TOOL_CALLS]now{"a": 1}', [{"a": 1}]),
        # Granite, Phi
        ("granite", '<tool_call>[@{"a": 1}}]', [{"a": 1}]),
        ("granite", '<tool_call>\n@{}}\n</tool_call>', [{}]),
        ("phi", '<|tool_call|>@{}}<|/tool_call|>', [{}]),
        ("phi", '<|tool_calls|>[@{}}]<|/tool_calls|>', [{}]),
        ("phi", 'functools[@{}}]', [{}]),
        # like Python
        ("lfm2", "«[now(a='x', b=\"it's\", c=[1, {'d': None}])]»",
         [{"a": "x", "b": "it's", "c": [1, {"d": None}]}]),
        ("lfm2", "«[now( a = -1.5 , b=1_000, c=true, d=.5, )]»",
         [{"a": -1.5, "b": 1000, "c": True, "d": 0.5}]),
        ("lfm2", r"«[now(a='\x41\'\"\n')]»", [{"a": "A'\"\n"}]),
        ("lfm2", "«now()»", [{}]),
        ("lfm2", '«[@{}}]»', [{}]),
        ("olmo", "<function_calls>\nnow(a=null)\nnow()\n</function_calls>", [{"a": None}, {}]),
        # XML
        ("qwen3-coder", "<function=now>\n</function>", [{}]),
        ("qwen3-coder", "<tool_call><function=now></function></tool_call>", [{}]),
        ("qwen3-coder", '<tool_call>\n@{}}\n</tool_call>', [{}]),
    ],
)  # fmt: skip
def test_calls_of_one_tool(name, text, calls, parse):
    answer = parse(BY_NAME[name], long(text))
    assert answer.names == ["now"] * len(calls)
    assert [json.loads(a) for a in answer.arguments] == calls
    assert answer.text in ("", "Well: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>\n</tool_call>"),
        ("hermes", "Write <tool_call> and </tool_call>, or <tool_call><tool_call>."),
        ("hermes", '<tool_call>{"name": now}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>@[1]}</tool_call>'),
        ("hermes", '<tool_call>@"no"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": inf}, "name": "now"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": ' + '{"a":' * 9999 + "}" + ', "name": "now"}'),
        ("hermes", 'No mark: @{}}'),
        ("hermes", "<function=now></function>"),
        ("llama", '{"city": "Paris", "name": "now", "parameters": {}}'),
        ("llama", '{"name": "now"}'),
        ("llama", 'So: %{}}'),
        ("llama", "{}"),
        ("llama", '<|python_tag|>search.call(query="x")'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", "[TOOL_CALLS]now[OTHER]{}"),
        ("mistral", "[TOOL_CALLS]now is the time"),
        ("phi", "from functools import wraps; functools.wraps(now); functools[now]"),
        ("lfm2", "«[now(1)]»"),
        ("lfm2", "«[os.system(a=1)]»"),
        ("lfm2", "«[now.now()]»"),
        ("lfm2", "«[]»"),
        ("qwen3-coder", "<function=zzz>\n</function>"),
        ("qwen3-coder", "<tool_call>\n<function=now>\n<parameter=a>\n1"),
        ("qwen3-coder", "<function=now\n>"),
    ],
)  # fmt: skip
def test_what_is_no_call_is_text(name, text, parse):
    answer = parse(BY_NAME[name], long(text))
    assert (answer.text, answer.names) == (long(text), [])


@pytest.mark.parametrize(
    ("name", "text", "arguments", "rest"),
    [
        ("hermes", '<tool_call>@{"a": nope}} x', '{"a": ', "nope}} x"),
        ("hermes", '<tool_call>@{"a" 1}}', '{"a" ', "1}}"),
        ("hermes", '<tool_call>@{"a": 1<b>', '{"a": 1', "<b>"),
        ("hermes", '<tool_call>{"arguments": {}, "name": "now"<b>', "{}", "<b>"),
        ("hermes", '<tool_call>@{}, b}', "{}", ", b}"),
        ("lfm2", "«[now(a=1, b=f())] x", '{"a": 1, "b": ', "f())] x"),
        ("qwen3-coder", "<function=now><parameter=a>1</parameter>x", '{"a": "1"', "x"),
    ],
)  # fmt: skip
def test_what_breaks_within_arguments_is_text_from_there(name, text, arguments, rest, parse):
    """What was told of them cannot be taken back; that it is no JSON tells that it broke."""
    answer = parse(BY_NAME[name], long(text))
    assert (answer.arguments, answer.text) == ([arguments], rest)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "5", "5"),
        ("city", "\n\ta <b>\n\n", "\ta <b>\n"),
        ("days", "5", 5),
        ("days", "five", "five"),
        ("exact", "True", True),
        ("exact", "false", False),
        ("more", '{"tags": [1, null]}', {"tags": [1, None]}),
        ("more", "{'tags': [1, None]}", {"tags": [1, None]}),
        ("maybe", "null", None),
        ("maybe", "none of these", "none of these"),
        ("unit", "c", "c"),
        ("unknown", "5", "5"),
    ],
)
def test_parameters_in_xml_have_the_types_of_the_schema(key, text, value, parse):
    call = f"<function={F}>\n<parameter={key}>{text}</parameter>\n</function>"
    answer = parse(BY_NAME["qwen3-coder"], call)
    assert [json.loads(a) for a in answer.arguments] == [{key: value}]


def test_the_mark_that_breaks_a_call_may_begin_another(parse):
    answer = parse(BY_NAME["hermes"], '<tool_call><tool_call> {"name": "now"}')
    assert answer.order == ["<tool_call>", "call now"]


def test_arguments_are_the_characters_of_the_model(parse):
    own = '{ "a" :1e5,\n "b":[ ], "c":1.10, "d": "\\u00e9\\/" , "e": 12345678901234567890 }'
    text = f'<tool_call>{{"name": "now", "arguments": {own}}}</tool_call>'
    assert parse(BY_NAME["hermes"], text).arguments == [own]
    early = f'<tool_call>{{"arguments": {own}, "name": "now"}}</tool_call>'
    assert parse(BY_NAME["hermes"], early).arguments == [own]
    huge = '{"a": ' + "9" * 6000 + "}"
    text = f'<tool_call>{{"arguments": {huge}, "name": "now"}}</tool_call>'
    assert parse(BY_NAME["hermes"], text).arguments == [huge]


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>\na\n</think>\n\nb", "a\n", "b"),
        (" \n<think>a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\nb", "", "b"),
        ("<think>a", "a", ""),
        ("<think>a</thin", "a</thin", ""),
        ("<think>a</think>", "a", ""),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("b<think>a</think>", "", "b<think>a</think>"),
        ("<thinking>", "", "<thinking>"),
        ("\n\n b", "", "\n\n b"),
        ("\n", "", "\n"),
        ('<think><tool_call>{"name": "now"}</tool_call></think>',
         '<tool_call>{"name": "now"}</tool_call>', ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("offered", [True, False])
def test_thoughts_stand_at_the_beginning(text, reasoning, rest, offered, tools, parse):
    answer = parse(BY_NAME["hermes"], text, offered=tools if offered else ())
    assert (answer.reasoning, answer.text, answer.names) == (reasoning, rest, [])


def test_thoughts_that_the_prompt_has_opened(parse):
    text = '\na</think>\n{"name": "now", "parameters": {}}'
    answer = parse(BY_NAME["llama"], text, thinking=True)
    assert answer.order == ["a", "call now"]
    assert parse(BY_NAME["hermes"], "a", thinking=True).reasoning == "a"
