"""Answers of the engine, awaited: its thread tells the event loop when there is something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import attrs

from umbel.generation import Generation
from umbel.model import Model


@attrs.define(eq=False)
class Wake:
    """Sets an event of a loop from any thread; once for all that comes before it is heard."""

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event = attrs.field(factory=asyncio.Event)
    _told: bool = False

    def tell(self) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.event.set)

    async def heard(self) -> None:
        await self.event.wait()
        self.event.clear()
        self._told = False


class Meter(Protocol):
    """Is told of tokens as they come."""

    def prompt(self, n: int) -> None: ...

    def tokens(self, n: int) -> None: ...


@attrs.frozen
class Delta:
    """What has come of one answer: text, and how many of its tokens are told with it."""

    index: int
    text: str
    tokens: slice
    finish_reason: str | None


@attrs.define(eq=False)
class Answers:
    """The answers to one request, under way."""

    generations: Sequence[Generation]
    _wake: Wake
    _meter: Meter

    async def deltas(self) -> AsyncIterator[Delta]:
        """As they come, until all have ended; raises what a reader is told."""
        told = [0] * len(self.generations)
        running = list(range(len(self.generations)))
        while running:
            await self._wake.heard()
            for i in list(running):
                one = self.generations[i]
                text = one.poll()
                tokens = slice(told[i], len(one.tokens))
                told[i] = tokens.stop
                self._count(one, tokens)
                if one.finish_reason is not None:
                    running.remove(i)
                if text or one.finish_reason is not None or tokens.start < tokens.stop:
                    yield Delta(i, text, tokens, one.finish_reason)

    def _count(self, one: Generation, tokens: slice) -> None:
        if tokens.start == 0 < tokens.stop:
            self._meter.prompt(one.prompt_tokens - one.cached)
        self._meter.tokens(tokens.stop - tokens.start)

    async def ended(self) -> None:
        async for _ in self.deltas():
            pass

    def cancel(self) -> None:
        for one in self.generations:
            one.cancel()


async def begin(
    model: Model,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[dict[str, Any]],
    meter: Meter,
) -> Answers:
    """Starts an answer to each prompt. What a prompt costs to check is done on a thread."""
    wake = Wake(asyncio.get_running_loop())

    def start() -> list[Generation]:
        pairs = zip(prompts, settings, strict=True)
        return [model.generate(ids, notify=wake.tell, **given) for ids, given in pairs]

    return Answers(await asyncio.to_thread(start), wake, meter)
