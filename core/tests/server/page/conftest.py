"""A server for the page: a small one that says what a test wants, over the true one's API."""

from __future__ import annotations

import contextlib
import json
import mimetypes
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

PAGE = Path(__file__).parents[3] / "src" / "umbel" / "server" / "page"
POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@attrs.define(kw_only=True)
class Reply:
    """What becomes of one request for an answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[dict[str, Any], ...] = ()  # deltas of them
    status: int = 200
    error: str = ""  # what is wrong; where the status is 200, told in mid-stream
    headers: dict[str, str] = attrs.field(factory=dict)
    drop: bool = False  # the connection ends before the answer does
    wait: float = 0.0  # seconds between pieces
    piece: int = 5  # characters of one
    finish: str = "stop"
    gate: threading.Event | None = None  # waited for after the first pieces


@attrs.define(eq=False)
class Fake:
    """It listens on loopback; `replies` are taken one by one, then every text is echoed."""

    server: ThreadingHTTPServer
    key: str = ""
    scripted: bool = True
    replies: deque[Reply] = attrs.field(factory=deque)
    bodies: list[dict[str, Any]] = attrs.field(factory=list)
    gone: threading.Event = attrs.field(factory=threading.Event)  # a reader has left
    models: list[str] = attrs.field(factory=lambda: ["smollm2", "qwen3"])
    polls: int = 0
    down: bool = False  # every connection is cut

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def say(self, text: str = "", **more: Any) -> Reply:
        """The next answer."""
        made = Reply(text=text, **more)
        self.replies.append(made)
        return made

    def live(self) -> dict[str, Any]:
        """Numbers that move, as those of a server that works do."""
        self.polls += 1
        swing = (self.polls % 20) / 20
        model = {
            "id": "smollm2",
            "loaded": True,
            "ctx": 4096,
            "parallel": 4,
            "devices": ["numa:0"],
            "running": 2,
            "waiting": 1,
            "prefill_tokens_per_second": 900 * (swing > 0.7),
            "decode_tokens_per_second": 32 + 20 * swing,
            "cells": {"total": 16384, "used": int(5000 + 3000 * swing), "cached": 3200},
            "prompt_tokens": 51234,
            "cached_tokens": 31000,
        }
        other = {**model, "id": "qwen3", "loaded": False, "running": 0, "waiting": 0}
        status = {
            "temperature_c": 41 + 9 * swing,
            "memory_total": 8 << 30,
            "memory_free": (5 << 30) - int(swing * 2e9),
            "hbm_bytes": 3_221_225_472,
            "mode": "mirror",
            "programs": 12,
        }
        numa = {
            "name": "numa:0",
            "description": "2 nodes, 16 cores each",
            "simulated": False,
            "status": status,
        }
        cann = {
            "name": "cann:0",
            "description": "Ascend 310B",
            "simulated": True,
            "status": {"temperature_c": 52, "power_w": 9.5},
        }
        devices = [cann, numa]
        return {"time": time.time(), "models": [model, other], "devices": devices}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, format: str, *args: Any) -> None:
        """Tests tell what went wrong."""

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the browser left
            super().handle()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.fake.down:
            self.close_connection = True
        elif path == "/":
            self.file("index.html")
        elif path.startswith("/page/"):
            self.file(path.removeprefix("/page/"))
        elif self.refused():
            pass
        elif path == "/v1/models":
            rest = {"object": "model", "created": 1, "owned_by": "umbel"}
            data = [{"id": name, **rest} for name in self.fake.models]
            self.json({"object": "list", "data": data})
        elif path == "/api/live":
            self.json(self.fake.live())
        else:
            self.json({"error": {"message": "there is no such path"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.fake.down:
            self.close_connection = True
            return
        if self.refused():
            return
        self.fake.bodies.append(body)
        said = body["messages"][-1]["content"]
        replies = self.fake.replies
        reply = replies.popleft() if replies else Reply(text=f"Echo: {said}")
        if reply.status != 200:
            error = {"message": reply.error, "type": "x", "param": None, "code": None}
            self.json({"error": error}, reply.status, reply.headers)
            return
        try:
            self.stream(reply, body)
        except ConnectionError:
            self.fake.gone.set()
            self.close_connection = True

    def refused(self) -> bool:
        """The key is wanted, and is not there."""
        if not self.fake.key or self.headers["Authorization"] == f"Bearer {self.fake.key}":
            return False
        msg = "the API key is missing or not one of this server's"
        error = {"message": msg, "type": "authentication_error", "code": "invalid_api_key"}
        self.json({"error": error}, 401)
        return True

    def stream(self, reply: Reply, body: dict[str, Any]) -> None:
        self.head(200, "text/event-stream", {"Transfer-Encoding": "chunked"})
        self.delta({"role": "assistant", "content": ""})
        self.chunk(b": ping\n\n")
        for field, text in (("reasoning_content", reply.reasoning), ("content", reply.text)):
            for i in range(0, len(text), reply.piece):
                self.delta({field: text[i : i + reply.piece]})
                if reply.gate and i == 4 * reply.piece:
                    reply.gate.wait(20)
                time.sleep(reply.wait)
        for call in reply.calls:
            self.delta({"tool_calls": [call]})
        if reply.drop:
            time.sleep(0.2)  # a browser forgets what it has not yet handed on
            self.close_connection = True
            return
        if reply.error:
            error = {"message": reply.error, "type": "server_error", "code": None}
            self.event({"error": error})
        else:
            timings = {"predicted_n": 7, "predicted_per_second": 41.25}
            self.delta({}, finish_reason=reply.finish, timings=timings)
            assert body["stream_options"]["include_usage"]
            cached = {"cached_tokens": 30}
            usage = {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
            usage_all = {**usage, "prompt_tokens_details": cached}
            self.event({"choices": [], "usage": usage_all})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def delta(self, delta: dict[str, Any], **more: Any) -> None:
        timings = {k: more.pop(k) for k in ("timings",) if k in more}
        choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
        self.event({"model": "smollm2", "choices": [choice], "usage": None, **timings})

    def event(self, data: object) -> None:
        text = json.dumps(data, ensure_ascii=False)
        self.chunk(f"data: {text}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def file(self, name: str) -> None:
        path = PAGE / name
        if "/" in name or not path.is_file():
            self.json({"error": {"message": "there is no such file"}}, 404)
            return
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        data = path.read_bytes()
        self.head(200, kind, {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def json(self, data: object, status: int = 200, headers: Any = None) -> None:
        body = json.dumps(data).encode()
        more = {"Content-Length": str(len(body)), **(headers or {})}
        self.head(status, "application/json", more)
        self.wfile.write(body)

    def head(self, status: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@attrs.frozen
class Running:
    """A server that somebody started, with a model of its own: what it says is not chosen."""

    url: str
    scripted: bool = False


@pytest.fixture
def page_server() -> Iterator[Any]:
    """What serves the page: it has a `url`, and tells whether answers can be `scripted`.

    It is the small one here; the true one, started by hand, where UMBEL_PAGE_URL names it.
    """
    if url := os.environ.get("UMBEL_PAGE_URL"):
        yield Running(url.rstrip("/"))
        return

    class OfThis(Handler):
        pass

    with Server(("127.0.0.1", 0), OfThis) as server:
        OfThis.fake = Fake(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield OfThis.fake
        server.shutdown()
        thread.join(10)


@pytest.fixture
def fake(page_server: Any) -> Any:
    """The server of which a test says what it answers."""
    if not page_server.scripted:
        pytest.skip("the server's answers cannot be chosen")
    return page_server
