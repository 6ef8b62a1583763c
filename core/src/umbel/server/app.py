"""The application: which path leads where, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from umbel.errors import UmbelError
from umbel.server import chat, completions, embeddings, files, live, native, openapi
from umbel.server.devices import Devices
from umbel.server.errors import HttpError, response, status_of
from umbel.server.guard import Access, Guard
from umbel.server.limits import Limits
from umbel.server.metrics import Metrics
from umbel.server.pool import Pool
from umbel.server.state import State
from umbel.server.work import run

log = logging.getLogger("umbel")

Handler = Callable[[Request], Awaitable[Response]]


def _writing(endpoint: ModuleType) -> Handler:
    async def handle(request: Request) -> Response:
        made: Any = endpoint
        return await run(request, made)

    return handle


GET, POST = ["GET"], ["POST"]
ROUTES = (
    ("/v1/chat/completions", _writing(chat), POST),
    ("/v1/completions", _writing(completions), POST),
    ("/v1/embeddings", embeddings.endpoint, POST),
    ("/v1/models", live.models, GET),
    ("/v1/models/{name:path}", live.model, GET),
    ("/health", native.health, GET),
    ("/v1/health", native.health, GET),
    ("/props", native.props, GET),
    ("/slots", native.slots, GET),
    ("/metrics", live.metrics, GET),
    ("/tokenize", native.tokenize, POST),
    ("/detokenize", native.detokenize, POST),
    ("/apply-template", native.apply_template, POST),
    ("/lora-adapters", native.lora_adapters, ["GET", "POST"]),
    ("/completion", _writing(native), POST),
    ("/api/live", live.live, GET),
    ("/api/devices", live.devices, GET),
    ("/api/{backend}/status", live.status, GET),
    ("/openapi.json", openapi.endpoint, GET),
    ("/", files.index, GET),
    ("/favicon.ico", files.favicon, GET),
    ("/page/{name}", files.file, GET),
)


async def _refused(request: Request, error: Exception) -> Response:
    if status_of(error) >= 500 and not isinstance(error, HttpError):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return response(error)


async def _unknown(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    what = {404: "there is no such path", 405: "this path has another method"}
    return response(HttpError(error.status_code, what.get(error.status_code, error.detail)))


def make(pool: Pool, limits: Limits, access: Access) -> Guard:
    """The application; models are closed when it shuts down."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tending = asyncio.create_task(pool.tend())
        try:
            yield
        finally:
            tending.cancel()
            await pool.close()

    routes = [Route(path, handler, methods=methods) for path, handler, methods in ROUTES]
    handlers: Any = {HTTPException: _unknown, UmbelError: _refused, Exception: _refused}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.state.umbel = State(pool, limits, Metrics(pool, Devices()))
    return Guard(app, access, limits)
