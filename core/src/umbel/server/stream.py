"""Answers over HTTP: whole, or as server-sent events; who has gone is noticed either way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from umbel.server.errors import to_json, told
from umbel.server.limits import Limits

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


class ClientGoneError(Exception):
    """Nobody reads any more."""


def event(data: object) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. When the client leaves before it is cancelled: `ClientGoneError`."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return await task
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. `pieces` are whole events; what it raises is told as the last one.

    Iterator and `held` are closed at the end, also where the client has gone, or does not read
    what was sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        limits: Limits,
        held: AsyncExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.pieces, self.limits, self.held = pieces, limits, held
        # proxies are not to hold back what is meant to be seen at once
        kept = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        self.init_headers(kept)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            with suppress(ClientGoneError, TimeoutError, asyncio.TimeoutError, OSError):
                await unless_gone(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        async with aclosing(_with_pings(self.pieces, self.limits.ping_seconds)) as pieces:
            async for piece in pieces:
                body = {"type": "http.response.body", "body": piece, "more_body": True}
                await asyncio.wait_for(send(body), self.limits.write_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _with_pings(
    pieces: AsyncIterator[bytes], seconds: float
) -> AsyncGenerator[bytes, None]:
    """A comment goes out while there is nothing else, so that nobody takes it for dead."""
    task: asyncio.Future[bytes] | None = None
    try:
        while True:
            task = task or asyncio.ensure_future(_next(pieces))
            done, _ = await asyncio.wait({task}, timeout=seconds)
            if not done:
                yield PING
                continue
            try:
                piece = task.result()
            except StopAsyncIteration:
                return
            finally:
                task = None
            yield piece
    except Exception as error:
        yield event(told(error))
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if close := getattr(pieces, "aclose", None):
            await close()


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    return await pieces.__anext__()
