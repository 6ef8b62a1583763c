"""Answers over HTTP: whole, or as server-sent events; who has gone is noticed either way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
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
    ) -> None:
        self.status_code, self.background = 200, None
        self.pieces, self.limits, self.held = pieces, limits, held
        self._sending, self._at = False, time.monotonic()
        # proxies are not to hold back what is meant to be seen at once
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            writing = asyncio.create_task(self._write(send))
            gone = asyncio.create_task(_gone(receive))
            try:
                await self._watch(writing, gone, send)
            finally:
                for one in (writing, gone):
                    one.cancel()
                await asyncio.gather(writing, gone, return_exceptions=True)

    async def _watch(
        self, writing: asyncio.Task[None], gone: asyncio.Task[None], send: Send
    ) -> None:
        """Until all is written, nobody reads, or what was sent is not taken. One look a while
        costs less than a clock for each piece."""
        both, limits = {writing, gone}, self.limits
        every = min(limits.ping_seconds, limits.write_seconds) / 2
        while True:
            done, _ = await asyncio.wait(
                both, timeout=every, return_when=asyncio.FIRST_COMPLETED
            )
            quiet = time.monotonic() - self._at
            if done or (self._sending and quiet > limits.write_seconds):
                return
            if not self._sending and quiet > limits.ping_seconds:
                await self._send(send, PING)  # or somebody takes it for dead

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        try:
            async for piece in self.pieces:
                await self._send(send, piece)
        except Exception as error:
            await self._send(send, event(told(error)))
        finally:
            if close := getattr(self.pieces, "aclose", None):
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, piece: bytes) -> None:
        self._sending, self._at = True, time.monotonic()
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False
