"""How families of models write calls, told by their chat templates.

Reference: the chat templates and model cards of Qwen 2.5 and 3, SmolLM 3, Hermes, Llama 3,
Mistral, Granite 3 and 4, Phi-4-mini, LFM2, Olmo 3 and Qwen3-Coder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from umbel.server.tools.json_form import JsonForm, NamedForm
from umbel.server.tools.offers import Tool
from umbel.server.tools.parser import Parser
from umbel.server.tools.pieces import new_id
from umbel.server.tools.python_form import PythonForm
from umbel.server.tools.xml_form import OPEN, XmlForm

Place: TypeAlias = Literal["variable", "message", "nowhere"]


class Form(Protocol):
    """One call: as text, and as rules of a grammar of which the first is called `rule`."""

    def write(self, name: str, arguments: Mapping[str, Any], /) -> str: ...

    def rules(self, tool: Tool, rule: str, /) -> list[str]: ...


@attrs.frozen
class Layout:
    """What stands around all calls, around each of them, and between them."""

    head: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    tail: str = ""


_JSON = JsonForm()


@attrs.frozen
class Family:
    """`opens` and `closes` are the marks in an answer; `layout` and `form` are what is written.

    `tells` is where the template looks for tools: in its variables, in the system message, or
    nowhere, so that a text has to tell of them. What the template does not show of calls
    (`shows_calls`) and their results (`shows_results`) is put into the text of messages.
    """

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    layout: Layout
    form: Form = _JSON
    bare: bool = False
    single: bool = False  # the template takes one call a message
    short_ids: bool = False  # the template takes ids of 9 letters and digits
    tells: Place = "variable"
    takes_system: bool = True
    shows_calls: bool = True
    shows_results: bool = True

    def parser(
        self,
        tools: Sequence[Tool],
        thinking: bool = False,
        new_id: Callable[[], str] = new_id,
    ) -> Parser:
        """Of one answer; `thinking` says that the prompt ends within thoughts."""
        how: dict[str, Any] = {"thinking": thinking, "new_id": new_id}
        return Parser(self.opens, self.closes, tools, bare=self.bare, **how)

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, each a name and its arguments, as the model would write them."""
        around = self.layout
        each = (around.before + self.form.write(*call) + around.after for call in calls)
        return around.head + around.between.join(each) + around.tail

    def prompt(self, tools: Sequence[Tool]) -> str:
        """A system text that tells of the tools and of the form of calls."""
        lines = "\n".join(json.dumps(t.function, ensure_ascii=False) for t in tools)
        example = self.write([("NAME", {"PARAMETER": "VALUE"})])
        return (
            "You have these functions, one a line, each with a JSON schema of its parameters:\n"
            f"<tools>\n{lines}\n</tools>\n"
            "To call one, answer in exactly this form, with its name and your values:\n"
            f"{example}\n"
            "What it gives comes back in <tool_response>. Call one only where it helps."
        )


_TAGGED = Layout(before="<tool_call>\n", between="\n", after="\n</tool_call>")

HERMES = Family("hermes", ("<tool_call>",), ("</tool_call>",), _TAGGED)
CODER = Family("qwen3-coder", ("<tool_call>", OPEN), ("</tool_call>",), _TAGGED, XmlForm())
LLAMA = Family(
    "llama",
    ("<|python_tag|>",),
    (),
    Layout(between="; "),
    JsonForm("parameters"),
    bare=True,
    single=True,
)
MISTRAL = Family(
    "mistral",
    ("[TOOL_CALLS]",),
    (),
    Layout("[TOOL_CALLS][", between=", ", tail="]"),
    short_ids=True,
)
MISTRAL_NAMED = attrs.evolve(
    MISTRAL, name="mistral-named", layout=Layout(before="[TOOL_CALLS]"), form=NamedForm()
)
GRANITE = Family(
    "granite",
    ("<|tool_call|>", "<tool_call>"),
    ("</tool_call>",),
    Layout("<|tool_call|>[", between=", ", tail="]"),
)
PHI = Family(
    "phi",
    ("<|tool_call|>", "<|tool_calls|>", "functools"),
    ("<|/tool_call|>", "<|/tool_calls|>"),
    Layout("<|tool_call|>[", between=", ", tail="]<|/tool_call|>"),
)
LFM = Family(
    "lfm2",
    ("<|tool_call_start|>",),
    ("<|tool_call_end|>",),
    Layout("<|tool_call_start|>[", between=", ", tail="]<|tool_call_end|>"),
    PythonForm(),
)
OLMO = Family(
    "olmo",
    ("<function_calls>",),
    ("</function_calls>",),
    Layout("<function_calls>", between="\n", tail="</function_calls>"),
    PythonForm(),
)
GENERIC = attrs.evolve(
    HERMES, name="generic", tells="nowhere", shows_calls=False, shows_results=False
)

FAMILIES = (
    *(HERMES, CODER, LLAMA, MISTRAL, MISTRAL_NAMED),
    *(GRANITE, PHI, LFM, OLMO, GENERIC),
)

# What a template holds, and what that tells; the first that is found counts. Granite 4 has the
# tags of Hermes; all earlier ones have a role for tools, or name their own mark.
_SIGNS = (
    (r"<\|tool_(call|list)_start\|>", LFM),
    (r"\[TOOL_CALLS\].*\[ARGS\]", MISTRAL_NAMED),
    (r"\[TOOL_CALLS\]", MISTRAL),
    (r"<function=", CODER),
    (r"<function_calls>", OLMO),
    (r"<\|/?tool\|>|<\|/tool_calls?\|>", PHI),
    (r"<\|tool_call\|>|>available_tools<|'available_tools'", GRANITE),
    (r"<tool_call>", HERMES),
    (r"<\|python_tag\|>|\"parameters\": ?", LLAMA),
)
_VARIABLE = re.compile(r"(?<![\w.'\"])tools\b(?!['\"])")
_NO_SYSTEM = re.compile(r"raise_exception\(\s*['\"][^'\"]*[Ss]ystem")
_IN_MESSAGE = re.compile(r"message(\.tools|\[['\"]tools['\"]\])")


def family_of(template: str, arch: str) -> Family:
    """The family of a model, from its chat template and, where that names no form, from its
    architecture."""
    takes_system = not _NO_SYSTEM.search(template)
    found = GENERIC
    if "tools" in template:
        by_arch = {"granite": GRANITE, "lfm2": LFM}.get(arch, GENERIC)
        found = next((f for sign, f in _SIGNS if re.search(sign, template, re.S)), by_arch)
    if found is GENERIC:
        return attrs.evolve(found, takes_system=takes_system)
    in_message: Place = "message" if _IN_MESSAGE.search(template) else "nowhere"
    return attrs.evolve(
        found,
        takes_system=takes_system,
        tells="variable" if _VARIABLE.search(template) else in_message,
        shows_calls="tool_calls" in template,
        shows_results=re.search(r"['\"]tool['\"]", template) is not None,
    )
