"""Which family a template belongs to, and what it takes from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from umbel.server.tools import FAMILIES, family_of

TEMPLATES = Path(__file__).parents[2] / "text" / "chat"
LOOP = "{% for t in tools %}{{ t | tojson }}{% endfor %}"
CALLS = "{% for c in message.tool_calls %}{{ c }}{% endfor %}{{ message.role == 'tool' }}"


@pytest.mark.parametrize(
    ("template", "arch", "name"),
    [
        ('<tool_call>\\n{"name": ..}\\n</tool_call>', "qwen2", "hermes"),
        ("<|start_of_role|> <tool_call>\\n{..}\\n</tool_call>", "granite", "hermes"),
        ("<tool_call>\\n<function=' ~ name ~ '>", "qwen3moe", "qwen3-coder"),
        ("<|python_tag|>", "llama", "llama"),
        ('{"name": function, "parameters": values}', "llama", "llama"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "llama", "mistral"),
        ("[TOOL_CALLS]' + name + '[ARGS]'", "llama", "mistral-named"),
        ("respond with <|tool_call|> and a list", "granite", "granite"),
        ("<|start_of_role|>available_tools<|end_of_role|>", "granite", "granite"),
        ("<|start_of_role|>tools<|end_of_role|>", "granite", "granite"),
        ("<|tool|>' + tools + '<|/tool|>", "phi3", "phi"),
        ("<|tool_call|>{..}<|/tool_call|>", "phi3", "phi"),
        ("<|tool_list_start|>[", "lfm2", "lfm2"),
        ("<|tool_call_start|>[", "lfm2", "lfm2"),
        ("List of tools", "lfm2", "lfm2"),
        ("<function_calls>", "olmo2", "olmo"),
        ("an unknown way", "llama", "generic"),
    ],
)
def test_a_template_with_tools_shows_the_form_of_calls(template, arch, name):
    family = family_of(f"{LOOP}{template}{CALLS}", arch)
    assert family.name == name
    if name != "generic":
        assert (family.tells, family.shows_calls, family.shows_results) == (
            "variable",
            True,
            True,
        )


@pytest.mark.parametrize(
    "arch", ["gemma3", "gpt2", "mamba", "olmo2", "granite", "llama", "lfm2"]
)
def test_a_template_without_tools_is_told_of_them(arch):
    family = family_of("{% for m in messages %}<tool_call>{{ m.content }}{% endfor %}", arch)
    assert (family.name, family.tells) == ("generic", "nowhere")
    assert not family.shows_calls
    assert not family.shows_results


def test_a_template_may_look_for_tools_in_the_system_message():
    phi = "{% if 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}"
    family = family_of(phi, "phi3")
    assert (family.name, family.tells, family.shows_calls) == ("phi", "message", False)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("qwen", "hermes"),
        ("llama3", "llama"),
        ("mistral", "mistral"),
        ("gemma", "generic"),
        ("chatml", "generic"),
    ],
)
def test_whole_templates(file, name):
    source = (TEMPLATES / f"{file}.jinja").read_text(encoding="utf-8")
    assert family_of(source, "llama").name == name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_the_prompt_tells_of_each_tool_and_of_the_form(family, tools, parse):
    prompt = family.prompt(tools)
    lines = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == [tool.function for tool in tools]
    example = family.write([("NAME", {"PARAMETER": "VALUE"})])
    assert example in prompt
    answer = parse(family, example.replace("NAME", "now"))
    assert (answer.names, answer.text) == (["now"], "")
    assert json.loads(answer.arguments[0]) == {"PARAMETER": "VALUE"}
