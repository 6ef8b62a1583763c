"""The models that are served: loaded when they are asked for, closed when others need memory.

A model can be there several times, on devices of its own (replicas): a request goes to the one
that has computed most of its prompt, then to the one with the fewest jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from umbel.errors import DeviceError, OutOfMemoryError, UmbelError
from umbel.model import Model
from umbel.server.errors import HttpError
from umbel.server.prefix import Prefixes

log = logging.getLogger("umbel")

RETRY_SECONDS = 1
STRIKES = 2
TOUCHED = 1 << 22  # bytes at a time


RECENT_SECONDS = 5.0  # over which speeds of now are meant


@attrs.define
class Speed:
    """Tokens of the last seconds."""

    _seen: deque[tuple[float, int]] = attrs.field(factory=deque)
    _sum: int = 0

    def add(self, n: int) -> None:
        if n:
            self._seen.append((time.monotonic(), n))
            self._sum += n

    @property
    def now(self) -> float:
        """Tokens a second."""
        start = time.monotonic() - RECENT_SECONDS
        while self._seen and self._seen[0][0] < start:
            self._sum -= self._seen.popleft()[1]
        return self._sum / RECENT_SECONDS


@attrs.frozen
class Meter:
    """How fast prompts are read and answers written."""

    prompts: Speed = attrs.field(factory=Speed)
    answers: Speed = attrs.field(factory=Speed)

    def prompt(self, n: int) -> None:
        self.prompts.add(n)

    def tokens(self, n: int) -> None:
        self.answers.add(n)


@attrs.define(eq=False)
class Replica:
    """One copy of a model, with what its requests share."""

    model: Model
    prefixes: Prefixes

    @classmethod
    def of(cls, model: Model) -> Replica:
        _touch(model)
        prefixes = Prefixes(model.runner.cache)
        model.engine.shared = prefixes
        return cls(model, prefixes)


def _touch(model: Model) -> None:
    """Has the system give the memory of the KV cache now, and not page by page in the middle
    of somebody's answer, which takes a third of a second for 500 MB."""
    states, nothing = model.runner.states, np.zeros(TOUCHED, np.uint8)
    for name, home in states.homes.items():
        if name.startswith(("k_cache", "v_cache")) and home.buffer_type.is_host:
            buffer, size = states.slots[name].buffer, states.tensors[name].nbytes
            for at in range(0, size, TOUCHED):
                buffer.write(at, nothing[: size - at])


@attrs.define(eq=False)
class Served:
    """A model by its name: `load(avoided)` makes its replicas, on a thread, and on none of
    those devices; it raises where none is left."""

    name: str
    path: Path
    load: Callable[[Collection[str]], Sequence[Model]] = attrs.field(repr=False)
    replicas: tuple[Replica, ...] = ()
    users: int = 0  # requests that hold it
    running: int = 0  # answers under way or waiting
    used: float = attrs.field(factory=time.monotonic)
    strikes: int = 0  # answers in a row that a device has failed
    resets: int = 0  # how often it was closed for that
    avoided: frozenset[str] = frozenset()  # devices that have failed too often
    prompt_tokens: int = 0  # of all requests
    cached_tokens: int = 0  # those that were computed before
    created: int = attrs.field(factory=lambda: int(time.time()))
    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    meter: Meter = attrs.field(factory=Meter)

    def open(self, models: Sequence[Model]) -> None:
        self.replicas = tuple(map(Replica.of, models))

    @property
    def nbytes(self) -> int:
        """Of memory: what it takes, or, not loaded, at least."""
        if not self.replicas:
            with suppress(OSError):
                return self.path.stat().st_size
            return 0
        runners = [r.model.runner for r in self.replicas]
        states = sum(t.nbytes for r in runners for t in r.states.tensors.values())
        return states + sum(r.weights.total for r in runners)

    @property
    def parallel(self) -> int:
        return sum(r.model.runner.settings.parallel for r in self.replicas)

    def live(self) -> dict[str, Any]:
        """What is so now, for who watches."""
        runners = [r.model.runner for r in self.replicas]
        pools = [r.cache.cells for r in runners if r.cache.cells]
        total = sum(len(p) - 1 for p in pools)
        return {
            "id": self.name,
            "loaded": bool(self.replicas),
            "ctx": runners[0].settings.ctx if runners else 0,
            "parallel": self.parallel,
            "devices": [d for r in self.replicas for d in r.model.devices],
            "running": min(self.running, self.parallel),
            "waiting": max(self.running - self.parallel, 0),
            "prefill_tokens_per_second": self.meter.prompts.now,
            "decode_tokens_per_second": self.meter.answers.now,
            "cells": {
                "total": total,
                "used": total - sum(p.free for p in pools),
                "cached": sum(r.prefixes.cells for r in self.replicas),
            },
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
        }

    def choose(self, ids: Sequence[int]) -> Replica:
        """Where a prompt has the least left to compute; else who has the least to do."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        asked = list(ids)
        return max(self.replicas, key=lambda r: (r.prefixes.known(asked), -r.model.engine.jobs))


class Pool:
    """All of them. `budget` bytes of memory, 0: no bound; a model that nobody has asked for in
    `idle` seconds is closed, 0: never."""

    def __init__(
        self, served: Iterable[Served], *, queue: int, budget: int = 0, idle: float = 0
    ) -> None:
        self.served = {one.name: one for one in served}
        self.queue, self.budget, self.idle = queue, budget, idle
        self.refused = 0  # requests, for want of room in the queue
        self.faults: dict[str, str] = {}  # what ended a model, by its name
        self._closing: asyncio.Future[None] | None = None

    @property
    def first(self) -> Served:
        return next(iter(self.served.values()))

    def find(self, name: object) -> Served:
        """The model of that name; the only one answers to any, as clients have names of their
        own."""
        if isinstance(name, str) and name in self.served:
            return self.served[name]
        if len(self.served) == 1 or name is None:
            return self.first
        msg = "there is no such model"
        fields: dict[str, Any] = {"where": "model", "expected": ", ".join(self.served)}
        raise HttpError(404, msg, code="model_not_found", got=name, **fields)

    @asynccontextmanager
    async def use(self, name: object) -> AsyncIterator[Served]:
        """The model, loaded, and kept until this is left."""
        one = self.find(name)
        one.users += 1
        try:
            async with one.lock:
                if not one.replicas:
                    await self._load(one)
            yield one
        finally:
            one.users -= 1
            one.used = time.monotonic()

    @asynccontextmanager
    async def place(self, one: Served, n: int = 1) -> AsyncIterator[None]:
        """A place for `n` answers among those who run or wait; else the client may retry."""
        if one.running + n > one.parallel + self.queue:
            self.refused += 1
            msg = "too many requests wait already"
            retry = {"Retry-After": str(RETRY_SECONDS)}
            raise HttpError(429, msg, code="queue_full", headers=retry, do="try again soon")
        one.running += n
        try:
            yield
        finally:
            one.running -= n

    async def _load(self, one: Served) -> None:
        await self._make_room(one)
        log.info("loading %s", one.name)
        try:
            models = await asyncio.to_thread(one.load, one.avoided)
        except OutOfMemoryError as error:
            raise HttpError(503, f"{one.name} finds no memory: {error.what}") from error
        except UmbelError as error:
            self.faults[one.name] = error.what
            msg = f"the model {one.name} cannot be loaded; the server's log tells why"
            log.error("%s cannot be loaded: %s", one.name, error)
            raise HttpError(503, msg, code="model_not_loaded") from error
        one.open(models)
        self.faults.pop(one.name, None)

    def answered(self, one: Served, error: BaseException | None = None) -> None:
        """An answer is over. What devices fail twice in a row is closed, and loaded anew for
        the next request; if that does not help, without the first of its devices."""
        if not isinstance(error, DeviceError):
            one.strikes = 0 if error is None else one.strikes
            return
        one.strikes += 1
        if one.strikes >= STRIKES and one.replicas:
            one.strikes, one.resets = 0, one.resets + 1
            if one.resets > 1:
                one.avoided |= {one.replicas[0].model.devices[0]}
            log.error("%s is loaded anew, after: %s", one.name, error)
            self._closing = asyncio.ensure_future(self.unload(one))

    async def _make_room(self, wanted: Served) -> None:
        """Closes models that nobody uses, what was used longest ago first."""
        if not self.budget:
            return
        if wanted.nbytes > self.budget:
            msg = f"the model {wanted.name} is larger than the memory for models"
            raise HttpError(503, msg, code="model_not_loaded", expected=self.budget)
        while (taken := sum(o.nbytes for o in self._loaded())) + wanted.nbytes > self.budget:
            idle = [o for o in self._loaded() if not o.users and not o.running]
            if not idle:
                msg = f"other models that are in use leave no memory for {wanted.name}"
                retry = {"Retry-After": "10"}
                raise HttpError(503, msg, headers=retry, expected=self.budget, got=taken)
            await self.unload(min(idle, key=lambda o: o.used))

    def _loaded(self) -> list[Served]:
        return [o for o in self.served.values() if o.replicas]

    async def unload(self, one: Served) -> None:
        replicas, one.replicas = one.replicas, ()
        log.info("closing %s", one.name)
        for replica in replicas:
            await asyncio.to_thread(replica.model.close)

    async def tend(self) -> None:
        """Closes what is idle, for ever."""
        while self.idle:
            await asyncio.sleep(min(self.idle / 4, 10))
            for one in self._loaded():
                free = not one.users and not one.running and not one.lock.locked()
                if free and time.monotonic() - one.used > self.idle:
                    await self.unload(one)

    async def close(self) -> None:
        for one in self._loaded():
            await self.unload(one)
