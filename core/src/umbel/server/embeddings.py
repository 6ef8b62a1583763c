"""POST /v1/embeddings: a vector for each text."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from umbel.model import Model
from umbel.server import body, state
from umbel.server.errors import json_response
from umbel.server.fields import Fields
from umbel.server.limits import Limits
from umbel.server.stream import ClientGoneError, unless_gone
from umbel.server.work import GONE

POOLING = ("mean", "cls", "last")


async def endpoint(request: Request) -> Response:
    here = state.of(request)
    fields = await body.fields(request, here.limits)
    try:
        return await unless_gone(request.receive, _answer(here, fields))
    except ClientGoneError:
        return Response(status_code=GONE)


async def _answer(here: state.State, fields: Fields) -> Response:
    async with AsyncExitStack() as held:
        served = await held.enter_async_context(here.pool.use(fields.data.get("model")))
        texts = _texts(fields, here.limits)
        await held.enter_async_context(here.pool.place(served))
        model = min((r.model for r in served.replicas), key=lambda m: m.engine.jobs)
        made = await asyncio.to_thread(_embed, fields, model, texts)
        return json_response({**made, "model": served.name})


def _texts(fields: Fields, limits: Limits) -> list[Any]:
    """A text, token ids, or several of either."""
    value: Any = fields.data.get("input")
    ids = isinstance(value, list) and value and all(isinstance(v, int) for v in value)
    given = [value] if isinstance(value, str) or ids else value
    good = isinstance(given, list) and 0 < len(given) <= limits.inputs
    if not good or not all(isinstance(v, str | list) and v for v in given):
        fields.refuse("input", f"a text, token ids, or 1 to {limits.inputs} of them")
    return list(given)


def _embed(fields: Fields, model: Model, texts: list[Any]) -> dict[str, Any]:
    width = model.runner.definition.hparams.n_embd
    fields.integer("dimensions", width, width, width)
    coded = fields.choice("encoding_format", ("float", "base64"), "float")
    how = fields.choice("pooling", POOLING, "") or None
    ids = [model.tokenize(t) if isinstance(t, str) else t for t in texts]
    vectors = model.embed(ids, pooling=how, normalize=fields.boolean("normalize", True))
    n = sum(map(len, ids))
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _coded(row, coded)}
            for i, row in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": n, "total_tokens": n},
    }


def _coded(row: np.ndarray, coded: str) -> Any:
    if coded == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(v) for v in row]
