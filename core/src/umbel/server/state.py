"""What all endpoints have: the models, the bounds, and what is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from starlette.requests import Request

from umbel.server.limits import Limits
from umbel.server.pool import Pool

if TYPE_CHECKING:
    from umbel.server.metrics import Metrics


@attrs.frozen
class State:
    pool: Pool
    limits: Limits
    metrics: Metrics


def of(request: Request) -> State:
    state: State = request.app.state.umbel
    return state
