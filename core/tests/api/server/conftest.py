"""Servers on this machine's loopback, each on a thread of its own, and clients of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import umbel
from umbel.server import app, serve
from umbel.server.guard import Access, Guard
from umbel.server.limits import Limits
from umbel.server.pool import Pool, Served

# A template that marks turns with brackets, and ends where an answer begins.
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@attrs.define(eq=False)
class Running:
    """A server that listens."""

    port: int
    server: serve.Server
    guard: Guard
    pool: Pool
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{"timeout": 30, **settings})

    def idle(self) -> None:
        """Until nothing runs, waits or is open any more."""
        until = time.monotonic() + 10
        while self.busy:
            assert time.monotonic() < until, self.pool.first.live()
            time.sleep(0.005)

    @property
    def busy(self) -> bool:
        served = self.pool.served.values()
        jobs = sum(r.model.engine.jobs for one in served for r in one.replicas)
        return bool(self.guard.open or jobs or any(o.running or o.users for o in served))

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def serving() -> Iterator[Callable[..., Running]]:
    """serving(model or {name: model or a function that loads}, ...): a running server."""
    running: list[Running] = []

    def start(
        models: umbel.Model | Mapping[str, Any],
        *,
        keys: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
        local_only: bool = True,
        budget: int = 0,
        idle: float = 0,
        **limits: Any,
    ) -> Running:
        named = models if isinstance(models, Mapping) else {"test": models}
        bounds = Limits(**{"drain_seconds": 5.0, **limits})
        served = [_served(name, given) for name, given in named.items()]
        pool = Pool(served, queue=bounds.queue, budget=budget, idle=idle)
        access = Access.of(keys, origins, local_only=local_only)
        guard = app.make(pool, bounds, access)
        bound = serve.listen("127.0.0.1", 0)
        server = serve.Server(serve.config(guard, bounds), guard)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        until = time.monotonic() + 10
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < until
            time.sleep(0.002)
        running.append(Running(bound.getsockname()[1], server, guard, pool, thread))
        return running[-1]

    yield start
    for one in running:
        with contextlib.suppress(RuntimeError):
            one.stop()


def _served(name: str, given: Any) -> Served:
    if isinstance(given, umbel.Model):
        one = Served(name, Path(given.file.path), lambda _: [given])
        one.open([given])
        return one
    if isinstance(given, list):
        one = Served(name, Path(given[0].file.path), lambda _: given)
        one.open(given)
        return one
    path, load = given
    return Served(name, path, load)


@pytest.fixture
def talking(rewrite: Callable[..., Path], load: Callable[..., umbel.Model]) -> umbel.Model:
    """A small model with a chat template."""
    path = rewrite("stories260K", {"tokenizer.chat_template": TURNS})
    return load(path, ctx=512, parallel=4)
