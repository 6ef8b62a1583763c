"""GET /api/...: what the models and devices do now, for the page and for who watches."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from umbel.server import state
from umbel.server.errors import HttpError, json_response
from umbel.server.pool import Served


async def live(request: Request) -> Response:
    here = state.of(request)
    models = [one.live() for one in here.pool.served.values()]
    devices = await asyncio.to_thread(here.metrics.devices.told)
    return json_response({"time": time.time(), "models": models, "devices": devices})


async def devices(request: Request) -> Response:
    told = await asyncio.to_thread(state.of(request).metrics.devices.told)
    return json_response({"devices": told})


async def status(request: Request) -> Response:
    name, here = request.path_params["backend"], state.of(request)
    told = await asyncio.to_thread(here.metrics.devices.of_backend, name)
    if not told:
        msg = "there is no such backend with a device"
        raise HttpError(404, msg, got=name, do="GET /api/devices lists them")
    return json_response({one["name"]: one["status"] for one in told})


async def metrics(request: Request) -> Response:
    text = await asyncio.to_thread(state.of(request).metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(request: Request) -> Response:
    pool = state.of(request).pool
    data = [_told(one) for one in pool.served.values()]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    name, pool = request.path_params["name"], state.of(request).pool
    if name not in pool.served:
        msg = "there is no such model"
        raise HttpError(404, msg, code="model_not_found", got=name)
    return json_response(_told(pool.served[name]))


def _told(one: Served) -> dict[str, object]:
    """A model as OpenAI's API lists it."""
    return {"id": one.name, "object": "model", "created": one.created, "owned_by": "umbel"}
