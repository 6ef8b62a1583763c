"""OpenAI's messages as templates want them, with the templates themselves."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from umbel.server.tools import FAMILIES, family_of, messages_for_template
from umbel.text.chat import ChatTemplate

TEMPLATES = Path(__file__).parents[2] / "text" / "chat"
BY_NAME = {family.name: family for family in FAMILIES}
CALLS = [("get_weather", {"city": "x"}), ("now", {})]


def call(number, name, arguments="{}"):
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


def own(content=None, **more):
    """An assistant's message as the server sends it."""
    return {"role": "assistant", "content": content, "refusal": None, **more}


TALK = [
    {"role": "user", "content": "Weather?"},
    own(
        tool_calls=[
            call("call_" + "a" * 24, "get_weather", '{"city": "x"}'),
            call("id2", "now"),
        ]
    ),
    {"role": "tool", "tool_call_id": "call_" + "a" * 24, "content": "sunny"},
    {"role": "tool", "tool_call_id": "id2", "content": "noon"},
]


def test_arguments_become_objects_and_null_a_text():
    before = copy.deepcopy(TALK)
    made = messages_for_template(TALK, BY_NAME["hermes"])
    assert before == TALK  # which stay what they are
    assert [c["function"]["arguments"] for c in made[1]["tool_calls"]] == [{"city": "x"}, {}]
    assert [c["id"] for c in made[1]["tool_calls"]] == ["call_" + "a" * 24, "id2"]
    assert made[1]["content"] == ""
    assert [(m["tool_call_id"], m["name"]) for m in made[2:]] == [
        ("call_" + "a" * 24, "get_weather"),
        ("id2", "now"),
    ]


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", '"x"', "[" * 100_000, {"a": 1}, None])
def test_arguments_that_are_no_object_stay(arguments):
    (made,) = messages_for_template(
        [own(tool_calls=[call("a", "f", arguments)])], BY_NAME["hermes"]
    )
    assert made["tool_calls"][0]["function"]["arguments"] == arguments


def test_no_arguments_are_an_empty_object():
    (made,) = messages_for_template([own(tool_calls=[call("a", "f", "")])], BY_NAME["hermes"])
    assert made["tool_calls"][0]["function"]["arguments"] == {}


def test_a_name_that_a_result_has_is_kept():
    result = {"role": "tool", "tool_call_id": "id2", "name": "other", "content": "noon"}
    assert messages_for_template([TALK[1], result], BY_NAME["hermes"])[-1]["name"] == "other"


def test_the_names_of_before():
    old = [
        own(function_call={"name": "now", "arguments": '{"a": 1}'}),
        {"role": "function", "name": "now", "content": "noon"},
    ]
    first, second = messages_for_template(old, BY_NAME["hermes"])
    (made,) = first["tool_calls"]
    assert made["function"] == {"name": "now", "arguments": {"a": 1}}
    assert "function_call" not in first
    assert (second["role"], second["tool_call_id"]) == ("tool", made["id"])


@pytest.mark.parametrize("messages", [[], ["x"], [None, 1], [{}], [{"role": "tool"}], [own()]])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_what_is_odd_is_left_to_the_template(messages, family):
    made = messages_for_template(messages, family)
    assert len(made) == len(messages)


@pytest.mark.parametrize(
    "calls", [5, "x", [5], [{}], [{"function": 5}], [{"function": {}}], {}, []]
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_odd_calls_break_nothing(calls, family):
    assert messages_for_template([own(tool_calls=calls), TALK[2]], family)


def test_a_model_without_tools_is_told_of_all_in_texts(tools, parse):
    family = BY_NAME["generic"]
    talk = [{"role": "system", "content": "Be brief."}, *TALK]
    system, user, calls, results = messages_for_template(talk, family, tools)
    assert system == {"role": "system", "content": f"Be brief.\n\n{family.prompt(tools)}"}
    assert user == TALK[0]
    assert "tool_calls" not in calls
    answer = parse(family, calls["content"])
    told = zip(answer.names, map(json.loads, answer.arguments), strict=True)
    assert (list(told), answer.text) == (CALLS, "")
    assert results["role"] == "user"
    assert re.findall(r"<tool_response>\n(.*)\n</tool_response>", results["content"]) == [
        "sunny",
        "noon",
    ]
    assert messages_for_template(TALK, family, tools)[0]["content"] == family.prompt(tools)
    assert messages_for_template(TALK, family)[0] == TALK[0]


def test_parts_of_a_content_become_texts_where_text_is_needed(tools):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    talk = [{"role": "system", "content": parts}, {"role": "tool", "content": parts}]
    system, result = messages_for_template(talk, BY_NAME["generic"], tools)
    assert system["content"].startswith("a\nb\n\n")
    assert result["content"] == "<tool_response>\na\nb\n</tool_response>"
    spoken = own(parts, tool_calls=[call("a", "now")])
    (made,) = messages_for_template([spoken], BY_NAME["generic"])
    assert made["content"].startswith("a\nb\n<tool_call>")


def test_tools_go_into_the_system_message_where_the_template_looks_there(tools):
    source = (
        "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
        "{% if 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}"
        "{% endfor %}"
    )
    family = family_of(source, "phi3")
    prompt = ChatTemplate(source).render(messages_for_template(TALK, family, tools))
    told = prompt.partition("<|tool|>")[2].partition("<|/tool|>")[0]
    assert json.loads(told) == [tool.function for tool in tools]
    assert "<|assistant|><|tool_call|>[{" in prompt
    assert "<|user|><tool_response>\nsunny" in prompt


def test_the_first_user_tells_of_tools_where_no_system_may(tools):
    source = "{% if system %}{{ raise_exception('System role not supported') }}{% endif %}"
    family = family_of(source, "llama")
    (first, *rest) = messages_for_template(TALK, family, tools)
    assert first == {"role": "user", "content": f"{family.prompt(tools)}\n\nWeather?"}
    assert [m["role"] for m in rest] == ["assistant", "user"]


def test_one_call_a_message_for_templates_that_take_no_more():
    made = messages_for_template(TALK, BY_NAME["llama"])
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [m["content"] for m in made[2::2]] == ["sunny", "noon"]
    assert [len(m["tool_calls"]) for m in made[1::2]] == [1, 1]


def test_short_ids_for_templates_that_want_such():
    made = messages_for_template(TALK, BY_NAME["mistral"])
    ids = [c["id"] for c in made[1]["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in made[2:]]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", number) for number in ids)
    short = [own(tool_calls=[call("abc123def", "now")])]
    assert (
        messages_for_template(short, BY_NAME["mistral"])[0]["tool_calls"][0]["id"]
        == "abc123def"
    )


@pytest.mark.parametrize("file", ["qwen", "llama3", "mistral", "gemma", "chatml"])
@pytest.mark.parametrize("thought", [{}, {"reasoning_content": "hm"}])
def test_what_the_server_sent_is_accepted_back(file, thought, tools):
    """Cases V12 and C04: nulls, long ids, two calls, a last answer, unchanged."""
    source = (TEMPLATES / f"{file}.jinja").read_text(encoding="utf-8")
    family = family_of(source, "llama")
    given = None if family.tells != "variable" else [tool.told for tool in tools]
    talk = [TALK[0], {**TALK[1], **thought}, *TALK[2:], own("Sunny."), TALK[0]]
    made = messages_for_template(talk, family, tools)
    prompt = ChatTemplate(source, bos="<s>", eos="</s>").render(made, given)
    assert "None" not in prompt
    for told in ("get_weather", '"city": "x"', "sunny", "noon", "Sunny."):
        assert told in prompt
