"""Chat templates: a conversation's messages become the prompt that the model was trained on.

The template is the one in the model file, or one that the user gives; there is no other to fall
back on. It is compiled when it is first rendered, so a broken one blocks nothing but chat.
Messages are those of the OpenAI API; what a server has sent is accepted back. The prompt is
what the template says, the text of the BOS token included: whoever tokenizes it parses special
tokens in it and adds no BOS before one that is there. In what was given, they are marked.

Reference: Hugging Face's `apply_chat_template`, for what a template finds in its variables.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from umbel.errors import TemplateError
from umbel.text.guard import ESCAPED, guarded
from umbel.text.tokenizer import MARK, Matcher

Json: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = Sequence[Json]

NOTHING = Matcher({})
KEY = "tokenizer.chat_template"
_LOOP_OVER_PARTS = re.compile(r"for \w+ in [\w.\[\]('\"]*content['\"\])]*\s*(if |\||-?%})")
_TEST_FOR_TEXT = re.compile(r"content['\"\])]* is (not )?string")


@attrs.frozen
class ChatTemplate:
    """The chat template of a model; `where` names its file in errors.

    `tool_use` is the template that some files hold beside it for conversations with tools.
    """

    source: str
    bos: str = ""
    eos: str = ""
    where: str | None = None
    tool_use: str = ""

    def render(
        self,
        messages: Messages,
        tools: Messages | None = None,
        control: Matcher = NOTHING,
        /,
        **options: Any,
    ) -> str:
        """The prompt; `options` are further variables of the template, like `date_string`.

        What could become a text of `control`, and is not the template's own, is marked.
        """
        from umbel.extras import template  # imports jinja2, which takes a tenth of a second

        source = self.tool_use if tools and self.tool_use else self.source
        given = {**options, "messages": messages, "tools": tools or None}
        try:
            copy = json.loads(json.dumps(given, default=dict), object_hook=_read_arguments)
            variables = {name: guarded(copy[name], control, source) for name in copy}
        except (TypeError, ValueError, RecursionError) as error:
            msg = "a chat template is given what JSON can hold, and this is something else"
            raise TemplateError(msg, where="messages, tools or options", got=error) from error
        variables["messages"] = _messages(variables["messages"], source)
        tokens = {"bos_token": self.bos, "eos_token": self.eos}
        variables = {"add_generation_prompt": True, "documents": None, **tokens, **variables}
        return template.render(source, variables, self.where).replace(ESCAPED, MARK)


def from_metadata(metadata: Json, bos: str, eos: str, where: str) -> ChatTemplate | None:
    """The chat template of a GGUF file, or None where it has none."""
    source, tool_use = metadata.get(KEY), metadata.get(f"{KEY}.tool_use", "")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, bos, eos, where, str(tool_use))


class _Arguments(dict[str, Any]):
    """A call's arguments: a mapping, and a text to the templates that print or add it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _read_arguments(found: dict[str, Any]) -> dict[str, Any]:
    """The API sends the arguments of a call as a text, and most templates want the mapping."""
    with contextlib.suppress(TypeError, KeyError, ValueError, RecursionError):
        given = found["arguments"]
        found["arguments"] = _Arguments(
            **(json.loads(given) if isinstance(given, str) else given)
        )
    return found


def _messages(messages: Any, source: str) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        msg = "there are no messages for the chat template"
        raise TemplateError(msg, expected="a list of at least one message", got=messages)
    return [_message(m, f"messages[{i}]", source) for i, m in enumerate(messages)]


def _message(message: Any, where: str, source: str) -> dict[str, Any]:
    """The message without nulls: to a template a missing key is missing, null is "None"."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        msg = "this is not a chat message"
        raise TemplateError(msg, where=where, expected="a mapping with a role", got=message)
    kept = {key: value for key, value in message.items() if value not in (None, [])}
    return {**kept, "content": _content(kept.get("content", ""), source, f"{where}.content")}


def _content(content: Any, source: str, where: str) -> Any:
    """The content in the form that the template reads: a text, or a list of parts."""
    reads_parts = _LOOP_OVER_PARTS.search(source)
    if isinstance(content, str):
        if reads_parts is None or _TEST_FOR_TEXT.search(source):
            return content
        content = [{"type": "text", "text": content}]
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "text", "text": str()}:
                continue
        msg = "a message holds something other than text, which nothing here can read"
        raise TemplateError(msg, where=where, expected="text", got=str(part)[:99])
    return content if reads_parts else "\n".join(part["text"] for part in content)
