"""Chat templates: the messages of a conversation become the prompt that the model was trained on.

The template is the one in the model file, or one that the user gives; there is no other to fall
back on. It is compiled when it is first rendered, so a broken one blocks nothing but chat. Messages
are those of the OpenAI API; what a server has sent is accepted back. The prompt is what the
template says, the text of the BOS token included: whoever tokenizes it parses special tokens in it
and adds no BOS before one that is there.

Reference: Hugging Face's `apply_chat_template`, for what a template finds in its variables.
"""

from __future__ import annotations

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
        if tools and self.tool_use:
            return self.tool_use.render(
                messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs
            )
        variables = {
            "messages": _messages(messages),
            "tools": _plain(tools, "tools") or None,
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
            **{name: _plain(value, name) for name, value in kwargs.items()},
        }
        try:
            for message in variables["messages"]:
                message["content"] = self._content(message["content"])
            return self._run(variables)
        except Exception as error:  # the template is a stranger's code: anything may come out
            raise self._error(error) from error

    def _run(self, variables: Mapping[str, Any]) -> str:
        from umbel.text import template  # imports jinja2, which takes a tenth of a second

        self._code = self._code or template.compile_source(self.source)
        return template.render(
            self._code, {"bos_token": self.bos, "eos_token": self.eos, **variables}
        )

    def _error(self, error: Exception) -> TemplateError:
        from umbel.text.template import OutOfBoundsError, RefusedError

        where, got = self.where or None, f"{type(error).__name__}: {str(error)[:300]}"
        if isinstance(error, RefusedError):
            msg = f"the chat template refuses the messages: {error}"
            return TemplateError(msg, where=where, do="change the messages as it says")
        if isinstance(error, OutOfBoundsError):
            msg = "the chat template takes more time or memory than a template may"
            return TemplateError(msg, where=where, do=_OTHER)
        msg = "the chat template cannot be rendered"
        return TemplateError(msg, where=where, got=got, do=_OTHER)

    def _content(self, content: str | list[str]) -> str | list[dict[str, str]]:
        """Content in the form that the template reads: a text, or a list of parts."""
        if self._kinds is None:
            parts = self._shows_probe([{"type": "text", "text": _PROBE}])
            self._kinds = (self._shows_probe(_PROBE) or not parts, parts)
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
    sources = [metadata.get(KEY), named.get("default"), *named.values(), tool_use]
    found = [source for source in sources if source is not None]
    if not found:
        return None
    special = {"bos": bos, "eos": eos, "where": where}
    with_tools = None if tool_use is None else ChatTemplate(tool_use, **special)
    return ChatTemplate(found[0], tool_use=with_tools, **special)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        msg = "there are no messages for the chat template"
        raise TemplateError(msg, expected="a list of at least one message", got=messages)
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A plain copy without nulls: for templates a missing key is not there, null is "None"."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        msg = "this is not a chat message"
        raise TemplateError(msg, where=where, expected="a mapping with a role", got=message)
    plain = {str(k): _plain(v, f"{where}.{k}") for k, v in message.items() if v is not None}
    plain["content"] = _texts(plain.get("content", ""), f"{where}.content")
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = calls
        for call in calls:
            _parse_arguments(call)
    return plain


def _texts(content: object, where: str) -> str | list[str]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        msg = "the content of a message is neither a text nor a list of parts"
        raise TemplateError(msg, where=where, got=content)
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else part
        msg = "a part of a message is not text, and there is nothing here that reads it"
        raise TemplateError(
            msg, where=where, expected="{'type': 'text', 'text': ...}", got=kind, do="send text"
        )
    return text


def _parse_arguments(call: object) -> None:
    """The API sends a call's arguments as JSON in a text; most templates want the mapping."""
    from umbel.text.template import JsonText

    function = call.get("function", call) if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(function, dict) and isinstance(text, str):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            function["arguments"] = JsonText(text, value)


def _plain(value: object, where: str) -> Any:
    """A copy in JSON's own types: objects with methods stay out of a stranger's reach."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    msg = "a chat template is given values that JSON can hold, and this is none"
    raise TemplateError(msg, where=where, got=type(value).__name__)
