"""POST /v1/completions: texts that go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs

from umbel.errors import OptionError
from umbel.model import Model
from umbel.server import logprobs, sampling, usage
from umbel.server.fields import Fields
from umbel.server.limits import Limits
from umbel.server.work import Answering

MOST = 20  # log probabilities of a token


@attrs.frozen(kw_only=True)
class Completion:
    """A request, checked. Answers to one prompt stand together."""

    given: list[list[int]]
    asked: sampling.Asked
    logprobs: int | None
    echo: list[str]  # the prompts, where they are to be repeated; else empty

    @property
    def stream(self) -> bool:
        return self.asked.stream

    @property
    def prompts(self) -> list[list[int]]:
        return [ids for ids in self.given for _ in range(self.asked.n)]

    @property
    def settings(self) -> list[dict[str, Any]]:
        each = [self.asked.each(i, logprobs=self.logprobs) for i in range(self.asked.n)]
        return each * len(self.given)

    def before(self, i: int) -> str:
        """What stands before the i-th answer."""
        return self.echo[i // self.asked.n] if self.echo else ""


def read(fields: Fields, model: Model, limits: Limits) -> Completion:
    for field in ("suffix",):
        if fields.has(field):
            msg = f"{field} is not supported: the model writes on, and fills no gaps"
            raise OptionError(msg, where=field)
    best_of = fields.integer("best_of", None, 1, limits.n)
    more = sampling.response_format(fields, limits)
    asked = sampling.asked(fields, model, limits, **more)
    if best_of not in (None, asked.n):
        msg = "best_of answers are not compared: it can only be n"
        raise OptionError(msg, where="best_of", expected=asked.n, got=best_of)
    given = prompts(fields, model, limits)
    echo = [model.detokenize(ids) for ids in given] if fields.boolean("echo") else []
    wanted = fields.integer("logprobs", None, 0, MOST)
    if echo and wanted is not None:
        msg = "log probabilities of a prompt are not computed: echo goes without logprobs"
        raise OptionError(msg, where="logprobs")
    return Completion(given=given, asked=asked, logprobs=wanted, echo=echo)


def prompts(fields: Fields, model: Model, limits: Limits) -> list[list[int]]:
    """A text, token ids, or several of either; a text begins with a BOS where the model wants
    one."""
    value = fields.data.get("prompt")
    several = isinstance(value, list) and not all(_is_id(v) for v in value)
    given = value if several else [value]
    if not given or len(given) > limits.n or value == []:
        fields.refuse("prompt", f"a text, token ids, or 1 to {limits.n} of them")
    return [_ids(fields, model, one) for one in given]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(fields: Fields, model: Model, prompt: object) -> list[int]:
    if isinstance(prompt, str):
        ids = model.tokenize(prompt, special=True)
        if not ids and model.tokenizer.bos_id is not None:
            ids = [model.tokenizer.bos_id]
    elif isinstance(prompt, list) and all(map(_is_id, prompt)):
        ids = model.tokenizer.check_ids(prompt)
    else:
        fields.refuse("prompt", "a text, token ids, or several of them")
    if not ids:
        msg = "the prompt is empty, and the model has no token to begin with"
        raise OptionError(msg, where="prompt", expected="text or token ids")
    return ids


def whole(answering: Answering) -> dict[str, Any]:
    wanted: Completion = answering.wanted
    choices = [
        {
            "index": i,
            "text": wanted.before(i) + one.text,
            "logprobs": _logprobs(answering, i, slice(0, len(one.tokens)), 0),
            "finish_reason": one.finish_reason,
        }
        for i, one in enumerate(answering.generations)
    ]
    return {
        **usage.head("cmpl", "text_completion", answering.name),
        "choices": choices,
        "usage": usage.usages(answering.generations, wanted.asked.n),
        "timings": usage.timings(answering.generations[0]),
    }


def _logprobs(answering: Answering, i: int, which: slice, start: int) -> Any:
    wanted: Completion = answering.wanted
    if wanted.logprobs is None:
        return None
    one = answering.generations[i]
    return logprobs.of_text(answering.model, one, which, wanted.logprobs, start)


async def chunks(answering: Answering) -> AsyncIterator[dict[str, Any]]:
    wanted: Completion = answering.wanted
    top = usage.head("cmpl", "text_completion", answering.name)
    usual = {"usage": None} if wanted.asked.usage else {}
    written = [0] * len(answering.generations)
    for i in range(len(written)):
        if before := wanted.before(i):
            yield {**top, "choices": [_choice(i, before)], **usual}
    async for delta in answering.started.deltas():
        told = _logprobs(answering, delta.index, delta.tokens, written[delta.index])
        written[delta.index] += len(delta.text)
        choice = _choice(delta.index, delta.text, delta.finish_reason, told)
        last = delta.finish_reason and {
            "timings": usage.timings(answering.generations[delta.index])
        }
        yield {**top, "choices": [choice], **usual, **(last or {})}
    if wanted.asked.usage:
        told_usage = usage.usages(answering.generations, wanted.asked.n)
        yield {**top, "choices": [], "usage": told_usage}


def _choice(
    index: int, text: str, reason: str | None = None, told: Any = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}
