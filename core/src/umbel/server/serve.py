"""Runs the application: connections, signals, and an end that loses no answer.

The first SIGTERM or Ctrl-C drains: nothing new is taken, answers under way are finished within
a bound. The second one stops.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from umbel.server.guard import Guard
from umbel.server.limits import Limits

BACKLOG = 1024  # connections that wait to be taken
HEAD = 64 << 10  # bytes of a head, at most


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that waits for the head of a request for so long and so much, and no more."""

    header_seconds = 20.0
    body_size = 8 << 20

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head: asyncio.TimerHandle | None = None
        self._taken = 0  # bytes since there was an answer
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._taken = 0 if self._answering() else self._taken + len(data)
        if self._taken > HEAD + self.body_size:
            self.transport.close()
            return
        super().data_received(data)
        if self._answering():
            self._head_came()
        elif self._head is None:
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._head is None and not self._answering():
            self._await_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._head_came()
        super().connection_lost(error)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self.header_seconds, self._too_slow)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_slow(self) -> None:
        self._head = None
        if not self._answering() and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's, with an end of our own."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self.guard = guard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.guard.draining = self.should_exit = True


def config(guard: Guard, limits: Limits) -> uvicorn.Config:
    kind = type(
        "Protocol",
        (Protocol,),
        {"header_seconds": limits.header_seconds, "body_size": limits.body},
    )
    settings: dict[str, Any] = {
        "http": kind,
        "ws": "none",
        "loop": "auto",  # uvloop where it is
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "timeout_keep_alive": limits.keep_alive_seconds,
        "timeout_graceful_shutdown": limits.drain_seconds,
        "backlog": BACKLOG,
    }
    return uvicorn.Config(guard, **settings)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that what is wrong with it is known before a model loads."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def run(guard: Guard, limits: Limits, bound: socket.socket) -> bool:
    """Serves until a signal; False where the application could not start."""
    server = Server(config(guard, limits), guard)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    server.run(sockets=[bound])
    return bool(server.started)
