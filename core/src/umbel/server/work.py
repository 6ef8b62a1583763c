"""A request that writes text, from its body to its end, whichever endpoint it came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

import attrs
from starlette.requests import Request
from starlette.responses import Response

from umbel.generation import Generation
from umbel.model import Model
from umbel.server import answers, body, state
from umbel.server.errors import json_response
from umbel.server.fields import Fields
from umbel.server.limits import Limits
from umbel.server.pool import Pool, Served
from umbel.server.stream import DONE, ClientGoneError, EventStream, event, unless_gone

GONE = 499  # nginx's number for a client that did not wait


class Wanted(Protocol):
    """A request as its endpoint has read and checked it."""

    @property
    def stream(self) -> bool: ...

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        """One for each answer."""

    @property
    def settings(self) -> Sequence[dict[str, Any]]:
        """Those of `Model.generate`, likewise."""


@attrs.frozen(kw_only=True)
class Answering:
    """Answers under way, and what they are of."""

    name: str  # of the model, as clients know it
    model: Model
    wanted: Any
    started: answers.Answers

    @property
    def generations(self) -> Sequence[Generation]:
        return self.started.generations


class Endpoint(Protocol):
    """How one kind of request is read and answered."""

    def read(self, fields: Fields, model: Model, limits: Limits) -> Wanted:
        """On a thread; raises what the client is told."""

    def whole(self, answering: Answering) -> dict[str, Any]:
        """The answer, when all of it is there."""

    def chunks(self, answering: Answering) -> AsyncIterator[dict[str, Any]]:
        """The same as it comes."""


async def run(request: Request, endpoint: Endpoint) -> Response:
    """The response. Whatever ends it, place and computation are given back."""
    here = state.of(request)
    fields = await body.fields(request, here.limits)
    try:
        return await unless_gone(request.receive, _run(here, fields, endpoint))
    except ClientGoneError:
        return Response(status_code=GONE)


async def _run(here: state.State, fields: Fields, endpoint: Endpoint) -> Response:
    async with AsyncExitStack() as held:
        served = await held.enter_async_context(here.pool.use(fields.data.get("model")))
        model = served.replicas[0].model
        wanted = await asyncio.to_thread(endpoint.read, fields, model, here.limits)
        await held.enter_async_context(here.pool.place(served, len(wanted.prompts)))
        model = served.choose(wanted.prompts[0]).model
        meter = served.meter
        started = await answers.begin(model, wanted.prompts, wanted.settings, meter)
        held.callback(started.cancel)
        held.callback(here.metrics.ended, served.name, started.generations)
        held.push(partial(_answered, here.pool, served))
        answering = Answering(name=served.name, model=model, wanted=wanted, started=started)
        if wanted.stream:
            pieces = _events(endpoint, answering, partial(here.pool.answered, served))
            return EventStream(pieces, here.limits, held.pop_all())
        await started.ended()
        return json_response(endpoint.whole(answering))


def _answered(pool: Pool, served: Served, kind: object, error: Any, trace: object) -> None:
    """How it ended, whether it was waited for or told piece by piece."""
    pool.answered(served, error)


async def _events(
    endpoint: Endpoint, answering: Answering, failed: Callable[[Exception], None]
) -> AsyncIterator[bytes]:
    try:
        async for chunk in endpoint.chunks(answering):
            yield event(chunk)
    except Exception as error:  # the stream tells it, and goes on to its end
        failed(error)
        raise
    yield DONE
