"""Endpoints that people script against llama-server (tools/server/README of llama.cpp)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import Response

from umbel import __version__
from umbel.errors import OptionError
from umbel.model import Model
from umbel.server import body, completions, sampling, state, usage
from umbel.server.errors import HttpError, json_response
from umbel.server.fields import Fields
from umbel.server.limits import Limits
from umbel.server.work import Answering

MOST = 100  # tokens whose probabilities are told


async def health(request: Request) -> Response:
    """503 while the first model is being loaded, or cannot be."""
    pool = state.of(request).pool
    for name, what in pool.faults.items():
        raise HttpError(503, f"the model {name} cannot be used: {what}")
    if pool.first.lock.locked() and not pool.first.replicas:
        msg = "Loading model"
        raise HttpError(503, msg, code="loading")
    return json_response({"status": "ok"})


async def props(request: Request) -> Response:
    def told(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
        template = model.chat_template
        settings = model.runner.settings
        return {
            "build_info": f"umbel {__version__}",
            "model_path": model.file.path.name,  # where it lies is nobody's business
            "total_slots": settings.parallel,
            "default_generation_settings": {"n_ctx": settings.ctx},
            "chat_template": template.source if template else "",
            "bos_token": model.detokenize([i], special=True)
            if (i := model.tokenizer.bos_id) is not None
            else "",
            "eos_token": model.detokenize([i], special=True)
            if (i := model.tokenizer.eos_id) is not None
            else "",
            "modalities": {"vision": False, "audio": False},
            "devices": list(model.devices),
            "is_sleeping": False,
        }

    return await _asked(request, told)


async def slots(request: Request) -> Response:
    """A row for each answer that can be under way."""
    here = state.of(request)
    one = here.pool.find(request.query_params.get("model"))
    live = one.live()
    free = live["parallel"] - live["running"]
    if request.query_params.get("fail_on_no_slot") and free <= 0:
        msg = "no slot available"
        raise HttpError(503, msg)
    rows = [
        {"id": i, "n_ctx": live["ctx"], "is_processing": i < live["running"]}
        for i in range(live["parallel"])
    ]
    return json_response(rows)


async def tokenize(request: Request) -> Response:
    def told(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
        text = fields.text("content", "")
        special = fields.boolean("parse_special", True)
        bos = fields.boolean("add_special")
        ids = model.tokenizer.encode(text, special=special, bos=bos, eos=False)
        if not fields.boolean("with_pieces"):
            return {"tokens": ids}
        return {"tokens": [{"id": i, "piece": _piece(model, i)} for i in ids]}

    return await _asked(request, told)


def _piece(model: Model, token: int) -> Any:
    """A text, or the bytes of half a character."""
    data = model.tokenizer.token_bytes(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: Request) -> Response:
    def told(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
        ids = model.tokenizer.check_ids(fields.items("tokens"))
        return {"content": model.detokenize(ids, special=True)}

    return await _asked(request, told)


async def apply_template(request: Request) -> Response:
    def told(model: Model, fields: Fields, limits: Limits) -> dict[str, Any]:
        ids = model.chat_prompt(fields.items("messages", 1))
        return {"prompt": model.detokenize(ids, special=True)}

    return await _asked(request, told)


async def lora_adapters(request: Request) -> Response:
    """GET: those that are loaded, with the scales of who does not say. POST: sets those."""

    def told(model: Model, fields: Fields, limits: Limits) -> Any:
        scales = model.default_adapters
        return [
            {"id": i, "path": name, "name": name, "scale": scales.get(name, 0.0)}
            for i, name in enumerate(model.adapters)
        ]

    if request.method == "GET":
        return await _asked(request, told)
    here = state.of(request)
    data = Fields({"lora": await _list(request, here.limits)})
    async with here.pool.use(request.query_params.get("model")) as served:
        for replica in served.replicas:
            wanted = sampling.adapters(data, replica.model) or {}
            replica.model.default_adapters = wanted
        return json_response({"success": True})


async def _list(request: Request, limits: Limits) -> list[Any]:
    given = await body.parsed_body(request, limits)
    if not isinstance(given, list):
        msg = "the body is a list of objects with id and scale"
        raise OptionError(msg, where="body", got=type(given).__name__)
    return given


async def _asked(request: Request, told: Callable[[Model, Fields, Limits], Any]) -> Response:
    """What a model says to a question that costs little; on a thread all the same."""
    here = state.of(request)
    fields = Fields({})
    if request.method == "POST":
        fields = await body.fields(request, here.limits)
    name = fields.data.get("model", request.query_params.get("model"))
    async with AsyncExitStack() as held:
        served = await held.enter_async_context(here.pool.use(name))
        model = served.replicas[0].model
        return json_response(await asyncio.to_thread(told, model, fields, here.limits))


# POST /completion


@attrs.frozen(kw_only=True)
class Native:
    """A request, checked."""

    prompt: list[int]
    asked: sampling.Asked
    logprobs: int | None

    @property
    def stream(self) -> bool:
        return self.asked.stream

    @property
    def prompts(self) -> list[list[int]]:
        return [self.prompt]

    @property
    def settings(self) -> list[dict[str, Any]]:
        return [self.asked.each(0, logprobs=self.logprobs)]


def read(fields: Fields, model: Model, limits: Limits) -> Native:
    given = completions.prompts(fields, model, limits)
    if len(given) != 1 or fields.integer("n", 1, 1, 1) != 1:
        msg = "/completion takes one prompt: send others by themselves, or to /v1/completions"
        raise OptionError(msg, where="prompt", expected=1, got=len(given))
    keep = fields.integer("n_keep", 0, -1, 1 << 31)
    for name in ("n_discard", "t_max_predict_ms", "id_slot"):
        fields.integer(name, None, -1 if name == "id_slot" else 0, 1 << 31)
    asked = sampling.asked(fields, model, limits, limit="n_predict")
    if fields.boolean("context_shift"):
        ctx = model.ctx
        kept = ctx - 5 if keep == -1 else min(keep, ctx - 5)
        asked = attrs.evolve(asked, settings={**asked.settings, "keep": kept})
    n = fields.integer("n_probs", 0, 0, MOST)
    return Native(prompt=given[0], asked=asked, logprobs=n or None)


def whole(answering: Answering) -> dict[str, Any]:
    (one,) = answering.generations
    ends = one.tokens[-1:] and one.tokens[-1] in answering.model.tokenizer.vocab.ends
    kind = "limit" if one.finish_reason == "length" else "eos" if ends else "word"
    return {
        "content": one.text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": answering.name,
        "tokens_predicted": len(one.tokens),
        "tokens_evaluated": one.prompt_tokens,
        "tokens_cached": one.cached,
        "stop_type": kind,
        "stopping_word": one.stop_string or "",
        "truncated": one.dropped > 0,
        "generation_settings": {"seed": one.seed, "n_ctx": answering.model.ctx},
        "timings": usage.timings(one),
        **_probabilities(answering, slice(0, len(one.tokens))),
    }


def _probabilities(answering: Answering, which: slice) -> dict[str, Any]:
    wanted: Native = answering.wanted
    if wanted.logprobs is None:
        return {}
    from umbel.server.logprobs import of_chat

    (one,) = answering.generations
    told = of_chat(answering.model, one, which, wanted.logprobs)
    return {"completion_probabilities": told["content"]}


async def chunks(answering: Answering) -> AsyncIterator[dict[str, Any]]:
    async for delta in answering.started.deltas():
        more = _probabilities(answering, delta.tokens)
        if delta.finish_reason is None:
            yield {"content": delta.text, "stop": False, "index": 0, **more}
        else:
            yield {**whole(answering), "content": delta.text, **more}
