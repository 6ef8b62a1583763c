"""POST /v1/chat/completions: conversations, with tools where they are given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import attrs

from umbel.errors import OptionError
from umbel.model import Model
from umbel.server import logprobs, sampling, usage
from umbel.server.fields import Fields
from umbel.server.limits import Limits
from umbel.server.message import Message
from umbel.server.tools import (
    Family,
    Tool,
    checked,
    constraint,
    family_of,
    messages_for_template,
)
from umbel.server.work import Answering

MOST = 20  # log probabilities of a token
AUDIO = ("audio", "modalities", "prediction", "web_search_options")  # is not here


@attrs.frozen(kw_only=True)
class Chat:
    """A request, checked."""

    prompt: list[int]
    asked: sampling.Asked
    logprobs: int | None
    family: Family
    tools: tuple[Tool, ...]  # that may be called
    thinking: bool  # the prompt ends where the model thinks
    marks: bool  # those of calls are control tokens, which texts do not show by themselves

    @property
    def stream(self) -> bool:
        return self.asked.stream

    @property
    def prompts(self) -> list[list[int]]:
        return [self.prompt] * self.asked.n

    @property
    def settings(self) -> list[dict[str, Any]]:
        more = {"logprobs": self.logprobs, "show_special": self.marks}
        return [self.asked.each(i, **more) for i in range(self.asked.n)]

    def message(self) -> Message:
        """What takes an answer apart as it comes."""
        return Message(self.family.parser(self.tools, self.thinking))


def read(fields: Fields, model: Model, limits: Limits) -> Chat:
    for field in AUDIO:
        if fields.has(field) and fields.data[field] != ["text"]:
            msg = f"{field} is not supported: the model reads and writes text"
            raise OptionError(msg, where=field, got=fields.data[field])
    best = fields.integer("top_logprobs", 0, 0, MOST)
    messages, family = fields.items("messages", 1), _family(model)
    given, choice = checked(fields.data)
    tools = given if choice.mode != "none" else ()
    more = sampling.response_format(fields, limits)
    parallel = fields.boolean("parallel_tool_calls", True)
    named = isinstance(fields.data.get("tool_choice"), dict)  # a function that is named: once
    forced = constraint(family, tools, choice, parallel and not named)
    if more and forced:
        msg = "an answer cannot both be a call and have a format"
        raise OptionError(msg, where="response_format", got="tool_choice, too")
    more |= dict([forced]) if forced else {}
    limit = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    asked = sampling.asked(fields, model, limits, limit=limit, **more)
    messages = messages_for_template(messages, family, tools)
    prompt = _prompt(fields, model, messages, tools if family.tells == "variable" else ())
    return Chat(
        prompt=prompt,
        asked=asked,
        logprobs=best if fields.boolean("logprobs") else None,
        family=family,
        tools=tuple(t for t in tools if t.name in choice.names),
        thinking=not asked.sampling.constraint and _thinks(model, prompt),
        marks=bool(tools) and not forced and _marked(model, family),
    )


def _family(model: Model) -> Family:
    template = model.chat_template
    source = f"{template.source}{template.tool_use}" if template else ""
    return family_of(source, model.runner.definition.architecture.name)


def _prompt(
    fields: Fields, model: Model, messages: list[Any], tools: tuple[Tool, ...]
) -> list[int]:
    options = fields.inner("chat_template_kwargs")
    how: dict[str, Any] = dict(options.data) if options else {}
    for taken in ("messages", "tools", "template"):
        how.pop(taken, None)
    told = [tool.told for tool in tools] or None
    return model.chat_prompt(messages, tools=told, **how)


def _thinks(model: Model, prompt: list[int]) -> bool:
    """Whether the prompt ends where the model thinks."""
    return model.detokenize(prompt[-8:], special=True).rstrip().endswith("<think>")


def _marked(model: Model, family: Family) -> bool:
    """Whether calls begin with a control token, which texts do not show by themselves."""
    encode = partial(model.tokenizer.encode, special=True, bos=False, eos=False)
    return any(not model.detokenize(encode(mark)) for mark in family.opens)


def whole(answering: Answering) -> dict[str, Any]:
    wanted: Chat = answering.wanted
    choices = []
    for i, one in enumerate(answering.generations):
        message = wanted.message()
        message.push(one.text)
        message.finish()
        told = _logprobs(answering, i, slice(0, len(one.tokens)))
        reason = message.reason(one.finish_reason)
        choice = {"index": i, "message": message.whole(), "logprobs": told}
        choices.append({**choice, "finish_reason": reason})
    return {
        **usage.head("chatcmpl", "chat.completion", answering.name),
        "choices": choices,
        "usage": usage.usage(answering.generations),
        "timings": usage.timings(answering.generations[0]),
    }


def _logprobs(answering: Answering, i: int, which: slice) -> Any:
    wanted: Chat = answering.wanted
    if wanted.logprobs is None:
        return None
    one = answering.generations[i]
    return logprobs.of_chat(answering.model, one, which, wanted.logprobs)


async def chunks(answering: Answering) -> AsyncIterator[dict[str, Any]]:
    wanted: Chat = answering.wanted
    top = usage.head("chatcmpl", "chat.completion.chunk", answering.name)
    usual = {"usage": None} if wanted.asked.usage else {}
    messages = [wanted.message() for _ in answering.generations]

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**top, "choices": [choice | more], **usual}

    for i in range(len(messages)):
        yield chunk(i, {"role": "assistant", "content": ""})
    async for delta in answering.started.deltas():
        message, told = messages[delta.index], _logprobs(answering, delta.index, delta.tokens)
        deltas = message.push(delta.text)
        if delta.finish_reason:
            deltas += message.finish()
        if told and told["content"] and not deltas:
            deltas = [{}]  # whose text is held back
        for one in deltas:
            yield chunk(delta.index, one, logprobs=told)
            told = None
        if delta.finish_reason:
            reason = message.reason(delta.finish_reason)
            last = chunk(delta.index, {}, reason)
            yield {**last, "timings": usage.timings(answering.generations[delta.index])}
    if wanted.asked.usage:
        yield {**top, "choices": [], "usage": usage.usage(answering.generations)}
