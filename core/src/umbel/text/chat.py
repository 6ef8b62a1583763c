"""Chat templates: a conversation's messages become the prompt that the model was trained on.

The template is the one in the model file, or one that the user gives; there is no other to fall
back on. It is compiled when it is first rendered, so a broken one blocks nothing but chat.
Messages are those of the OpenAI API; what a server has sent is accepted back. The prompt is
what the template says, the text of the BOS token included: whoever tokenizes it parses special
tokens in it and adds no BOS before one that is there.

Reference: Hugging Face's `apply_chat_template`, for what a template finds in its variables.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from umbel.errors import TemplateError

if TYPE_CHECKING:
    from types import CodeType

KEY = "tokenizer.chat_template"
_PROBE = "a text to look for"
_OTHER = "give a chat template of your own, or complete plain text"


@attrs.define(eq=False)
class ChatTemplate:
    """The chat template of a model; `where` names its file in errors.

    `tool_use` is the template that some files hold beside it for conversations with tools.
    """

    source: str
    bos: str = attrs.field(default="", kw_only=True)
    eos: str = attrs.field(default="", kw_only=True)
    where: str = attrs.field(default="", kw_only=True)
    tool_use: ChatTemplate | None = attrs.field(default=None, kw_only=True, repr=False)
    _code: CodeType | None = attrs.field(default=None, init=False, repr=False)
    _kinds: tuple[bool, bool] | None = attrs.field(default=None, init=False, repr=False)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt; `kwargs` are further variables of the template, like `date_string`."""
        given = {
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        variables = _checked(given)
        template = self.tool_use if tools and self.tool_use else self
        try:
            for message in variables["messages"]:
                message["content"] = template._content(message["content"])
            return template._run(variables)
        except Exception as error:  # the template is a stranger's code: anything may come out
            raise _explained(error, self.where or None) from error

    def _run(self, variables: Mapping[str, Any]) -> str:
        from umbel.text import template  # imports jinja2, which takes a tenth of a second

        self._code = self._code or template.compile_source(self.source)
        given = {"bos_token": self.bos, "eos_token": self.eos, "documents": None, **variables}
        return template.render(self._code, given)

    def _content(self, content: str | list[str]) -> str | list[dict[str, str]]:
        """Content in the form that the template reads: a text, or a list of parts."""
        if self._kinds is None:
            takes_parts = self._shows_probe([{"type": "text", "text": _PROBE}])
            self._kinds = (not takes_parts or self._shows_probe(_PROBE), takes_parts)
        takes_text, takes_parts = self._kinds
        texts = [content] if isinstance(content, str) else content
        if takes_parts and not (takes_text and isinstance(content, str)):
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)

    def _shows_probe(self, content: object) -> bool:
        """Does a rendered message show the text of its content, and not how it is stored?"""
        from umbel.text.template import OutOfBoundsError

        try:
            shown = self._run({"messages": [{"role": "user", "content": content}]})
        except OutOfBoundsError:
            raise
        except Exception:
            return False
        stored = (f"'text': '{_PROBE}'", f'"text": "{_PROBE}"')
        return _PROBE in shown and not any(form in shown for form in stored)


def from_metadata(
    metadata: Mapping[str, Any], bos: str, eos: str, where: str
) -> ChatTemplate | None:
    """The chat template of a GGUF file, or None where it has none."""
    names = [*metadata.get("tokenizer.chat_templates", ()), "tool_use"]
    named = {str(name): metadata.get(f"{KEY}.{name}") for name in names}
    tool_use = named.pop("tool_use")
    sources = (metadata.get(KEY), named.get("default"), *named.values(), tool_use)
    found = [source for source in sources if source is not None]
    if not found:
        return None
    with_tools = tool_use and ChatTemplate(tool_use, bos=bos, eos=eos, where=where)
    return ChatTemplate(found[0], bos=bos, eos=eos, where=where, tool_use=with_tools)


def _explained(error: Exception, where: str | None) -> TemplateError:
    from umbel.text.template import OutOfBoundsError, RefusedError

    if isinstance(error, RefusedError):
        msg = f"the chat template refuses the messages: {error}"
        return TemplateError(msg, where=where, do="change the messages as it says")
    if isinstance(error, OutOfBoundsError):
        msg = "the chat template takes more time or memory than a template may"
        return TemplateError(msg, where=where, got=str(error) or None, do=_OTHER)
    msg = "the chat template cannot be rendered"
    got = f"{type(error).__name__}: {str(error)[:300]}"
    return TemplateError(msg, where=where, got=got, do=_OTHER)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """A copy in JSON's own types without methods to call, its messages in one form."""
    try:
        variables: dict[str, Any] = json.loads(json.dumps(given, default=dict))
    except (TypeError, ValueError, RecursionError) as error:
        msg = "a chat template is given what JSON can hold, and this is something else"
        raise TemplateError(msg, where="messages, tools or options", got=error) from error
    messages = variables["messages"]
    if not isinstance(messages, list) or not messages:
        msg = "there are no messages for the chat template"
        raise TemplateError(msg, expected="a list of at least one message", got=messages)
    variables["messages"] = [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    return variables


def _message(message: Any, where: str) -> dict[str, Any]:
    """The message without nulls: to a template a missing key is missing, null is "None"."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        msg = "this is not a chat message"
        raise TemplateError(msg, where=where, expected="a mapping with a role", got=message)
    calls = message.get("tool_calls") or None
    for call in calls or ():
        _parse_arguments(call)
    content = _texts(message.get("content"), f"{where}.content")
    message = message | {"content": content, "tool_calls": calls}
    return {key: value for key, value in message.items() if value is not None}


def _texts(content: Any, where: str) -> str | list[str]:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind, text = (
            (part.get("type"), part.get("text")) if isinstance(part, dict) else (0, part)
        )
        if kind not in ("text", 0) or not isinstance(text, str):
            msg = "a message holds something other than text, which nothing here can read"
            wanted = "a text, or parts {'type': 'text', 'text': ...}"
            raise TemplateError(msg, where=where, expected=wanted, got=kind or part)
        texts.append(text)
    return texts


def _parse_arguments(call: Any) -> None:
    """The API sends a call's arguments as JSON in a text; most templates want the mapping."""
    from umbel.text.template import JsonText

    function = call.get("function", call) if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(function, dict) and isinstance(text, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            if isinstance(value, dict):
                function["arguments"] = JsonText(text, value)
