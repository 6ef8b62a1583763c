"""A request's body, read within bounds of size and time."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from umbel.server.errors import HttpError
from umbel.server.fields import Fields, parsed
from umbel.server.limits import Limits


async def fields(request: Request, limits: Limits) -> Fields:
    """The JSON object that the body is."""
    return Fields.of(await parsed_body(request, limits), "")


async def parsed_body(request: Request, limits: Limits) -> Any:
    """The JSON that the body is; `HttpError` 413, 415 or 408."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() not in ("application/json", ""):
        # a form of somebody else's page can be sent without asking, JSON cannot
        msg = "the body is to be JSON"
        raise HttpError(415, msg, expected="Content-Type: application/json", got=kind)
    try:
        body = await asyncio.wait_for(_read(request, limits.body), limits.body_seconds)
    except (TimeoutError, asyncio.TimeoutError):
        msg = "the body did not come in time"
        raise HttpError(408, msg, expected=f"{limits.body_seconds:g} s") from None
    return parsed(body)


async def _read(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    msg = "the body is too large"
    if announced.isdecimal() and int(announced) > most:
        raise HttpError(413, msg, expected=f"{most} bytes at most", got=announced)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise HttpError(413, msg, expected=f"{most} bytes at most")
    except ClientDisconnect:
        msg = "the client has gone"
        raise HttpError(400, msg) from None
    return bytes(body)
