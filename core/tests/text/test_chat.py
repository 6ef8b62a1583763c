"""Chat templates: families as Hugging Face renders them, messages, hostile sources.

`chat/*.jinja` are templates in the manner of five families, in our own words, and
`chat/prompts.json` is what transformers 5.24.0 (`render_jinja_template`) makes of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tracemalloc
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from umbel.errors import TemplateError
from umbel.extras import template as bounds
from umbel.text.chat import ChatTemplate, from_metadata

FOLDER = Path(__file__).parent / "chat"
CASES: dict[str, Any] = json.loads((FOLDER / "prompts.json").read_text("utf-8"))
HI = [{"role": "user", "content": "hi"}]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)


def family(name: str) -> ChatTemplate:
    source = (FOLDER / f"{name}.jinja").read_text("utf-8")
    return ChatTemplate(source, bos="<s>", eos="</s>", where="model.gguf")


def show(source: str, messages: Any = HI, tools: Any = None, **options: Any) -> str:
    template = ChatTemplate(source, bos="<s>", eos="</s>", where="model.gguf")
    return template.render(messages, tools, **options)


# --- Families.


@pytest.mark.parametrize("name", CASES)
def test_family_as_transformers(name: str) -> None:
    """Each family's prompt is the one that Hugging Face's renderer makes."""
    case = CASES[name]
    options = {**case["variables"]}
    tools = options.pop("tools", None)

    assert case["prompt"] == family(case["template"]).render(case["messages"], tools, **options)


@pytest.mark.parametrize("name", [name for name in CASES if "tools" in name])
def test_arguments_as_text(name: str) -> None:
    """A server's own message (null content, arguments as JSON text) gives the same prompt."""
    case = deepcopy(CASES[name])
    message = case["messages"][1]
    message |= {"content": None, "refusal": None, "audio": None}
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    options = case["variables"]
    tools = options.pop("tools")

    assert case["prompt"] == family(case["template"]).render(case["messages"], tools, **options)


def test_one_bos() -> None:
    """The BOS text comes from the template alone, exactly as often as it says."""
    assert family("gemma").render(HI).count("<s>") == 1
    assert family("chatml").render(HI).count("<s>") == 0


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma", [*HI, *HI, {"role": "assistant", "content": "x"}], "roles must alternate"),
        ("mistral", [*HI, *HI], "roles must alternate"),
        (
            "mistral",
            [*HI, {"role": "function", "content": "x"}],
            "Only user and assistant roles",
        ),
    ],
)
def test_template_refuses(name: str, messages: Any, reason: str) -> None:
    """The template's own message reaches the user; no other template steps in (C01)."""
    with pytest.raises(TemplateError, match=reason) as caught:
        family(name).render(messages)

    assert caught.value.where == "model.gguf"
    assert caught.value.do


def test_system_role_refused() -> None:
    """`raise_exception` keeps its text (C01)."""
    source = (
        "{% if messages[0].role=='system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
    )
    with pytest.raises(TemplateError, match="System role not supported"):
        show(source, [{"role": "system", "content": "x"}])


# --- Helpers and syntax.


def test_strftime_now() -> None:
    """`strftime_now` is today's date (C02)."""
    days = [datetime.now().strftime("%d %b %Y"), show("{{ strftime_now('%d %b %Y') }}")]
    days.append(datetime.now().strftime("%d %b %Y"))

    assert days[1] in (days[0], days[2])


def test_date_string() -> None:
    """Keyword arguments reach the template, so that a date can be given (C02)."""
    source = "{% if date_string is not defined %}none{% else %}{{ date_string }}{% endif %}"

    assert show(source) == "none"
    assert show(source, date_string="26 Jul 2024") == "26 Jul 2024"


def test_tags() -> None:
    """`generation`, `break`, `continue` and `namespace` work, also inside each other (C03)."""
    source = (
        "{% set ns = namespace(i=0) %}{% for m in messages %}{% if loop.first %}{% continue %}"
        "{% endif %}{% set ns.i = ns.i + 1 %}{% generation %}{{ m.content }}{% if ns.i == 2 %}"
        "{% break %}{% endif %}{% endgeneration %}{% endfor %}{{ ns.i }}"
    )
    messages = [{"role": "user", "content": text} for text in "abcd"]

    assert show(source, messages) == "bc2"


def test_blocks_are_trimmed() -> None:
    """Lines that hold only a block leave nothing behind."""
    assert show("a\n  {% if true %}\nb\n  {% endif %}\n") == "a\nb\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("tojson", '{"z": "a<b>&\'é", "a": [1, 2.5, null, true]}'),
        (
            "tojson(indent=2)",
            '{\n  "z": "a<b>&\'é",\n  "a": [\n    1,\n    2.5,\n    null,\n    true\n  ]\n}',
        ),
        ("tojson(sort_keys=true)", '{"a": [1, 2.5, null, true], "z": "a<b>&\'é"}'),
        ("tojson(separators=(',', ':'))", '{"z":"a<b>&\'é","a":[1,2.5,null,true]}'),
        ("tojson(ensure_ascii=true)", '{"z": "a<b>&\'\\u00e9", "a": [1, 2.5, null, true]}'),
    ],
)
def test_tojson(call: str, expected: str) -> None:
    """`tojson` escapes nothing for HTML and keeps the order of keys (C07)."""
    value = {"z": "a<b>&'é", "a": [1, 2.5, None, True]}

    assert expected == show("{{ value|" + call + " }}", value=value)


def test_tools_pass_through() -> None:
    """Tools reach the template unchanged; none, or an empty list, is none."""
    tools = [{"name": "a<b>&'é", "z": 1, "a": {"k": None}}]

    assert tools == json.loads(show("{{ tools|tojson }}", tools=tools))
    assert show("{{ tools is defined }}{{ tools is none }}", tools=[]) == "TrueTrue"


def test_string_operations() -> None:
    """What templates do with texts and lists gives what Python gives."""
    source = (
        "{{ ' ab '|trim }}|{{ 'a,b'.split(',')[-1] }}|{{ '%s-%03d' % ('x', 7) }}|"
        "{{ 'ab' * 2 }}|"
        "{{ ['a', 'b']|join(', ') }}|{{ 'a\nb'|indent(2) }}|{{ 'aXb'.replace('X', '--') }}|"
        "{{ 'k' in {'k': 1} }}|{{ {'a': 1}.items()|list }}|{{ 'a' ~ 1 ~ none }}|"
        "{{ 'abc'[1:] }}|"
        "{{ messages|map(attribute='role')|join }}|{{ 2 ** 10 % 7 }}|{{ 2.5 ** 2 }}|{{ none }}"
    )
    expected = "ab|b|x-007|abab|a, b|a\n  b|a--b|True|[('a', 1)]|a1None|bc|user|2|6.25|"
    assert expected == show(source)


def test_lazy_filters() -> None:
    """What a filter yields is true, and read once, as in jinja2 itself."""
    source = (
        "{% set roles = messages|map(attribute='role') %}{% set empty = []|select %}"
        "{{ 'true' if empty }} {{ roles|join }} {{ roles|list }} {{ [1, 2]|reverse|join(',') }}"
    )
    assert show(source) == "true user [] 2,1"
    source = (
        "{% for i in [1, 2, 3] %}{% set a = [loop] %}{{ (loop|default).index }}{% endfor %}"
    )
    assert show(source) == "123"


def test_numbers_of_64_bits() -> None:
    """The schema of a tool may name the largest numbers that there are."""
    limits = {"minimum": -(2**63), "maximum": 2**64 - 1}
    tools = [{"name": f"f{i}", "parameters": limits} for i in range(20)]

    assert tools == json.loads(show("{{ tools|tojson(indent=2) }}", tools=tools))


# --- Messages.


@pytest.mark.parametrize("source", [PLAIN, BOTH])
@pytest.mark.parametrize("message", [{"content": None}, {}])
def test_null_content(source: str, message: dict[str, Any]) -> None:
    """Null or missing content is an empty text, never the word None (C04)."""
    assert show(source, [{"role": "assistant", **message}]) == "<assistant>"


def test_null_in_tool_turn() -> None:
    """The second turn of a tool call, with null content, adds texts without a crash (C04)."""
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    messages.append({"role": "tool", "content": "21", "tool_call_id": "1"})
    source = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"

    assert show(source, messages) == "user:hi;assistant:;tool:21;"


@pytest.mark.parametrize(
    ("source", "expected"),
    [(PLAIN, "<user>a\nb"), (BOTH, "<user>[a][b]"), (PARTS, "<user>[a][b]")],
)
def test_list_content(source: str, expected: str) -> None:
    """Parts are joined to a text, unless the template itself reads parts (C04)."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert expected == show(source, [{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("source", "expected"), [(PLAIN, "<user>hi"), (BOTH, "<user>hi"), (PARTS, "<user>[hi]")]
)
def test_text_content(source: str, expected: str) -> None:
    """A text stays one, unless the template reads nothing but parts."""
    assert expected == show(source)


@pytest.mark.parametrize(
    ("loop", "reads"),
    [
        ("for p in m['content']", True),
        ("for p in m.content", True),
        ("for p in messages[0]['content'] if p.type == 'text'", True),
        ("for p in m.content | selectattr('type', 'eq', 'text')", True),
        ("for p in m.get('content')", True),
        ("for p in m.content.split(' ')", False),
        ("for p in contents", False),
        ("for p in documents", False),
    ],
)
def test_how_parts_are_read(loop: str, reads: bool) -> None:
    """Only a template that loops over the content is given parts."""
    source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    source += "{%- " + loop + " -%}[{{ p.text }}]{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    expected = "[a][b]" if reads else "a\nb"

    assert expected == show(
        source + "{% endif %}{% endfor %}", [{"role": "u", "content": parts}]
    )


def test_text_that_is_only_read_as_one() -> None:
    """Parts reach a template that drops whatever is no text, as Qwen's does."""
    source = "{% set c = messages[0].content %}{{ c if c is string else '' }}"

    assert show(source, [{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == "a"


def test_dumped_parts_are_not_read() -> None:
    """A template that dumps its content as JSON does not read parts."""
    source = "{{ messages[0].content|tojson }}"

    assert show(source, [{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == '"a"'


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}], "image_url"),
        ([{"type": "input_audio"}], "input_audio"),
        ([{"type": "text"}], "text"),
        ([7], "7"),
        (7, "7"),
        ({"text": "a"}, "{'text'"),
    ],
)
@pytest.mark.parametrize("source", [PLAIN, BOTH])
def test_parts_that_are_not_text(source: str, content: Any, kind: str) -> None:
    """Images and other parts are refused by name and place, never dropped."""
    with pytest.raises(TemplateError, match="other than text") as caught:
        show(source, [*HI, {"role": "user", "content": content}])

    assert caught.value.where == "messages[1].content"
    assert kind in str(caught.value.got)


@pytest.mark.parametrize("messages", [[], (), "hi", None, {"role": "user"}])
def test_no_messages(messages: Any) -> None:
    """An empty conversation, or none, is refused before the template sees it (C04)."""
    with pytest.raises(TemplateError, match="no messages"):
        show("{{ messages[-1].content }}", messages)


@pytest.mark.parametrize("message", ["hi", {}, {"content": "hi"}, {"role": 1, "content": "hi"}])
def test_not_a_message(message: Any) -> None:
    """A message needs a role, and the error says which has none."""
    with pytest.raises(TemplateError, match="not a chat message") as caught:
        show(PLAIN, [*HI, message])

    assert caught.value.where == "messages[1]"


def test_what_json_cannot_hold() -> None:
    """Objects with methods, cycles and the like do not reach the template."""
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (object(), {1, 2}, b"x", cycle):
        with pytest.raises(TemplateError, match="what JSON can hold"):
            show("{{ value }}", value=value)


def test_messages_are_not_changed() -> None:
    """Rendering leaves the caller's messages as they were."""
    messages = deepcopy(CASES["qwen, tools"]["messages"])
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "x"}'
    before = deepcopy(messages)
    family("qwen").render(messages)

    assert before == messages


def test_server_message_round_trip() -> None:
    """Nulls and empty lists of a server's message are as if they were not there (V12)."""
    sent = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "tool_calls": [],
        "audio": None,
    }
    source = "{{ messages[0].keys()|list|join(' ') }}"

    assert show(source, [sent]) == "role content"


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("'args ' + call.arguments + '!'", 'args {"a": 1}!'),
        ("'args ' ~ call.arguments", 'args {"a": 1}'),
        ("call.arguments", '{"a": 1}'),
        ("call.arguments|tojson", '{"a": 1}'),
        ("call.arguments.a + 1", "2"),
        ("call.arguments.items()|list", "[('a', 1)]"),
    ],
)
def test_arguments_for_either_template(use: str, expected: str) -> None:
    """A call's arguments are a mapping or a JSON text, as the template needs them."""
    source = "{% set call = messages[0].tool_calls[0].function %}{{ " + use + " }}"
    calls = [{"function": {"name": "f", "arguments": '{"a":  1}'}}]

    assert expected == show(source, [{"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("arguments", ["", "{", "[]", "[1]", "plain", "[" * 5000])
def test_arguments_that_are_no_object(arguments: str) -> None:
    """A model's broken arguments stay the text that they are."""
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    calls = [{"function": {"name": "f", "arguments": arguments}}]

    assert arguments == show(source, [{"role": "assistant", "tool_calls": calls}])


# --- The template of a file.


def test_from_metadata() -> None:
    """The file's template with its special tokens; None where there is none."""
    metadata = {"tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}"}
    found = from_metadata(metadata, "<b>", "<e>", "a.gguf")

    assert found is not None
    assert found.render(HI) == "<b><e>"
    assert found.where == "a.gguf"
    assert from_metadata({}, "", "", "") is None
    assert from_metadata({"tokenizer.chat_template": 7}, "", "", "") is None


def test_tool_use_template() -> None:
    """Of two templates, the one for tools is used where tools are given."""
    metadata = {
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template": "default",
        "tokenizer.chat_template.tool_use": "tools {{ tools|length }}{{ eos_token }}",
        "tokenizer.chat_template.rag": "rag",
    }
    found = from_metadata(metadata, "", "<e>", "a.gguf")

    assert found is not None
    assert found.render(HI) == "default"
    assert found.render(HI, [{"name": "f"}]) == "tools 1<e>"


@pytest.mark.parametrize(
    "source",
    ["{% for %}", "{{ x|nofilter }}", "{% endfor %}", "{{", "{{ 1 +", "{% include 'x' %}"],
)
def test_broken_template(source: str) -> None:
    """A broken template is an error when it is rendered and not before (C03)."""
    found = from_metadata({"tokenizer.chat_template": source}, "", "", "a.gguf")

    assert found is not None
    with pytest.raises(TemplateError, match="cannot be rendered") as caught:
        found.render(HI)
    assert (caught.value.where, bool(caught.value.got)) == ("a.gguf", True)


def test_import_is_light() -> None:
    """The module brings jinja2 in only when something is rendered."""
    code = "import sys, umbel.text.chat; sys.exit('jinja2' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- Hostile templates.

REACHING = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'].__mro__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ (['']|map(attribute='__class__')|list)[0].x }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
]
LOOP = "{% for i in range(99999) %}"
GROW = "{% set ns = namespace(a=['x'], s='x') %}{% for i in range(90) %}"
ENDLESS = {
    "loops": LOOP * 2 + "{% endfor %}" * 2,
    "loops over a list": "{% set r = range(9999)|list %}"
    + "{% for a in r %}" * 3
    + "{% endfor %}" * 3,
    "texts": LOOP * 2 + "some text" + "{% endfor %}" * 2,
    "captured texts": "{% set x %}" + LOOP * 2 + "text" + "{% endfor %}" * 2 + "{% endset %}",
    "filtered loop": ("{% for a in range(99999)|select('eq', 1) %}{% endfor %}") * 999,
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "comparisons": "{% set a = [[1]] * 20000 %}{% set b = [[2 - 1]] * 20000 %}{{ a"
    + " == b == a" * 1500
    + " }}",
    "keys": "{% set t = ('x',) * 90000 %}{% set d = {t: 1} %}"
    + LOOP
    + "{{ d[t] }}{% endfor %}",
    "tests": "{{ range(99999)|reject('in', ['x'] * 99999)|list|length }}",
    "sorting": LOOP + "{{ range(99999)|sort|length }}{% endfor %}",
    "attributes": "{{ ('x' * 99999)|map(attribute='y', default='z' * 99999)|join|length }}",
    "generators": "{% set ns = namespace(g=[1]) %}"
    + LOOP * 2
    + "{% set ns.g = ns.g|map('string') %}"
    + "{% endfor %}" * 2,
    "attribute that is a tuple": "{{ ([{}] * 30000)|map(attribute=('x',) * 30000)|list }}",
    "loops with a condition": "{% set r = ('x' * 99999)|list %}"
    + "{% for i in r if false %}{% endfor %}" * 1500,
    "lists": LOOP * 2 + "{% set x = [1] %}" + "{% endfor %}" * 2,
}
HUGE = {
    "text": "{{ 'x' * 10**8 }}",
    "text twice": "{{ ('x' * 99999) * 99999 }}",
    "list": "{{ ([1] * 10**9)|length }}",
    "tuple": "{{ (10**9 * (1,))|length }}",
    "number": "{{ 10 ** (10 ** 10) }}",
    "number by number": GROW
    + "{% set ns.s = (ns.i or 3) ** 9 %}{% set ns.i = ns.s %}{% endfor %}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "format width of zero": "{{ '%1000000000d' % 0 }}",
    "format zeros": "{{ '%01000000000d' % 1 }}",
    "format star": "{{ '%*d' % (10**9, 1) }}",
    "format precision": "{{ '%.1000000000f'|format(1.0) }}",
    "format key": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "format key in brackets": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "format repeated": "{{ ('%(a)s' * 300000) % {'a': 'x' * 99999} }}",
    "indent": "{{ 'x\ny'|indent(10**9) }}",
    "indent named": "{{ 'x\ny'|indent(width=10**9) }}",
    "indent text": "{{ ('x\n' * 99999)|indent('x' * 99999) }}",
    "replace": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "replace named": "{{ ('x' * 99999)|replace(new='y' * 99999, old='x') }}",
    "replace method": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replace nothing": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "replace mapped": "{{ (['x'] * 99999)|map('replace', 'x', 'y' * 99999)|list|length }}",
    "join": "{{ range(99999)|join('x' * 99999) }}",
    "join named": "{{ range(99999)|join(d='x' * 99999) }}",
    "join method": "{{ ('x' * 99999).join('y' * 99999) }}",
    "join of a generator": "{{ ('x' * 20000)|map(attribute='y', default='z' * 99999)|join }}",
    "join method of a generator": "{{ ''.join(('x' * 20000)|map(attribute='y',"
    " default='z' * 99999)) }}",
    "sort of a generator": "{{ ('x' * 20000)|map(attribute='y', default='Z' * 99999)|sort }}",
    "sort by an attribute": "{{ ('x' * 2000)|map(attribute='y', default={'a': 'Z' * 99999})"
    "|sort(attribute='a') }}",
    "groups of a default": "{{ ('x' * 2000)|list|groupby('y', default='Z' * 99999) }}",
    "tilde": "{% set b = 'x' * 777777 %}{{ " + "~".join("b" * 400) + " }}",
    "doubled text": GROW + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "added text": GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "captured text": GROW
    + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}{{ ns.s }}",
    "captured literal": "{% set x %}" + LOOP + "x" * 60000 + "{% endfor %}{% endset %}",
    "doubled list": GROW + "{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}",
    "nested list": GROW + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "nested dict": GROW + "{% set ns.a = {1: ns.a, 2: ns.a} %}{% endfor %}{{ ns.a }}",
    "texts in namespaces": "{% set b = 'x' * 49999 %}{% set ns = namespace(n=0) %}"
    + LOOP
    + "{% set ns.n = namespace(n=ns.n, s=b ~ i) %}{% endfor %}",
    "nested tuple": GROW + "{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}",
    "nested views": GROW
    + "{% set ns.d = {1: [(ns.d or {}).items(), (ns.d or {}).values()]} %}{% endfor %}"
    + "{{ ns.d|string|length }}",
    "json indent": "{{ [1]|tojson(indent=10**9) }}",
    "json indent and no number": "{{ [1]|tojson(indent=10**9, allow_nan='nan'|float) }}",
    "indent and no number": "{{ 'a\n'|indent(10**9, 'nan'|float) }}",
    "json deep": "{% set ns = namespace(a=range(99999)|list) %}{% for i in range(900) %}"
    "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a|tojson(indent=30) }}",
    "json separators": "{{ (range(99999)|list)|tojson(separators=('x' * 99999, ':')) }}",
    "strip": "{{ ('a' * 400000).strip('b' * 400000 ~ 'a') }}",
    "search from the right": "{{ ('a' * 300000).rfind('ab' ~ 'a' * 150000) }}",
    "no number": "{% set n = 1e308 * 10 - 1e308 * 10 %}{{ 2.0 ** n }}{{ 'x' * 10**8 }}",
    "split": "{% set ns = namespace(a=[]) %}"
    + LOOP
    + "{% set ns.a = [ns.a, ('ab ' * 40000).split(' ')] %}{% endfor %}",
    "slices": "{% set a = 'x' * 99999 %}"
    + "".join(f"{{% set b{i} = a[1:] %}}" for i in range(600)),
    "number by itself": GROW + "{% set ns.n = (ns.n or 3) * (ns.n or 3) %}{% endfor %}",
    "numbers of one hash": "{{ range(0, (2**61 - 1) * 99999, 2**61 - 1)|unique|list }}",
    "grouped numbers of one hash": "{% set n = 2305843009213693951 %}"
    "{{ dict(range(0, 99999 * 2305843009213693951, 2305843009213693951)|groupby('real')) }}",
    "source": "x" * 200_000,
}
NOT_OFFERED = [
    "{{ 'x'|center(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ ('x' * 2000)|map(attribute='y', default=['a', 'Z' * 99999])|urlencode }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ ('x' * 9999).translate({120: 'y' * 9999}) }}",
    "{{ lipsum(n=10**9) }}",
    "{{ [1]|batch(10**9, 0)|list }}",
    "{{ [1]|slice(10**9)|list|length }}",
    "{{ '{:1000000000}'.format(1) }}",
]


@pytest.mark.parametrize("source", REACHING)
def test_no_way_out(source: str) -> None:
    """Nothing beyond the template's own values can be reached or changed (C05)."""
    with pytest.raises(TemplateError, match="cannot be rendered"):
        show(source)


def test_undefined_internals_are_empty() -> None:
    """What the sandbox hides and the template only prints is nothing at all."""
    assert show("{{ self._TemplateReference__context }}{{ raise_exception.__globals__ }}") == ""


def test_namespaces_show_no_content() -> None:
    """A namespace's text is short, whatever it holds (C05)."""
    source = GROW + "{% set ns.a = namespace(a=ns.a, b=ns.a) %}{% endfor %}{{ ns.a }}"

    assert len(show(source)) < 200


def test_arguments_are_weighed() -> None:
    """What the arguments of a call hold counts like any other value (C05)."""
    source = "{{ ([messages[0].tool_calls[0].function.arguments] * 99999)|join }}"
    calls = [{"function": {"name": "f", "arguments": json.dumps({"a": "x" * 100_000})}}]
    with pytest.raises(TemplateError, match="more time or memory"):
        show(source, [{"role": "assistant", "tool_calls": calls}])


def in_thread(source: str) -> tuple[float, str]:
    """Render in a thread; the processor time it took, and the error."""
    seen: list[Any] = []

    def render() -> None:
        start = time.thread_time()
        try:
            show(source)
        except TemplateError as error:
            seen.extend((time.thread_time() - start, error.what))

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(30)
    assert len(seen) == 2, "no error, or no end"
    return seen[0], seen[1]


@pytest.mark.parametrize("name", ENDLESS)
def test_bounded_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that would run for very long is stopped, in any thread (C05)."""
    monkeypatch.setattr(bounds, "SECONDS", 0.2)
    seconds, what = in_thread(ENDLESS[name])

    assert "more time or memory" in what or name == "recursion"
    assert seconds < 2.0


def test_bounded_time_by_default() -> None:
    """Without a word from anybody the bound is a couple of seconds, once per render."""
    seconds, what = in_thread(ENDLESS["keys"])

    assert "more time or memory" in what
    assert 0.5 < seconds < 2.0


@pytest.mark.parametrize("name", HUGE)
def test_bounded_memory(name: str) -> None:
    """A template that would fill the memory is stopped before it does (C05)."""
    seconds, what = in_thread(HUGE[name])

    assert "more time or memory" in what
    assert seconds < 1.5


@pytest.mark.parametrize("source", NOT_OFFERED)
def test_not_offered(source: str) -> None:
    """What could fill the memory, and no known template wants, is not there at all."""
    with pytest.raises(TemplateError, match="cannot be rendered") as caught:
        show(source)

    kinds = ("SecurityError", "TemplateAssertionError", "UndefinedError")
    assert str(caught.value.got).split(":")[0] in kinds


def test_peak_memory() -> None:
    """None of these takes as much as 50 MB before it is stopped (C05)."""
    tracemalloc.start()
    try:
        for source in HUGE.values():
            with pytest.raises(TemplateError):
                show(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 50e6


def test_long_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds grow with the input: two thousand messages, five million characters."""
    monkeypatch.setattr(bounds, "SECONDS", 0.05)
    turns = [{"role": r, "content": "word " * 500} for r in ("user", "assistant")] * 1000
    prompt = family("qwen").render(turns)

    assert prompt.count("word " * 500) == 2000
    assert len(prompt) > 5_000_000


def test_threads_share_a_template() -> None:
    """One template rendered by many threads at once gives each its own prompt."""
    template, prompts = family("qwen"), {}

    def render(n: int) -> None:
        for _ in range(20):
            prompts[n] = template.render([{"role": "user", "content": f"number {n}"}])

    threads = [threading.Thread(target=render, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [f"number {n}<" in prompts[n] for n in range(4)] == [True] * 4
