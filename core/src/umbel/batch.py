"""The inputs of a step: a batch of sequences as the arrays that a model's graph reads.

The step may be larger than the batch: padding tokens belong to scratch places.
"""

from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np

from umbel.graph import MASKED
from umbel.models import StepShape
from umbel.state import Mix, Taken
from umbel.state import Sequence as Seq

# As many new tokens for each sequence; or whole texts of any length, for hidden states.
Batch = Sequence[tuple[Seq, list[int]]]
Row = Sequence[int] | np.ndarray


@attrs.frozen
class Feed:
    """A batch, and the places that it was given, on their way into a step."""

    step: StepShape
    batch: Batch
    taken: Sequence[Taken]
    causal: bool
    columns: Callable[[Mix], np.ndarray]  # how much each column of the adapters counts

    def arrays(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The inputs of these names, as the model's builder documents them."""
        given: dict[str, np.ndarray] = {}
        for name in names:
            kind, _, window = name.partition(":")
            make = _MADE.get(kind)
            given[name] = make(self) if make else _mask(self, int(window or 0))
        return given


def _flat(step: StepShape, rows: Sequence[Row], tokens: int = 0) -> np.ndarray:
    """(sequences * tokens,) of int32, by default the step's tokens; padding is 0."""
    tokens = tokens or step.tokens
    if step.sequences == 1 and len(rows[0]) == tokens:
        return np.array(rows[0], np.int32)
    out = np.zeros((step.sequences, tokens), np.int32)
    for row, values in zip(out, rows, strict=False):
        row[: len(values)] = values
    return out.reshape(-1)


def _asked(feed: Feed) -> np.ndarray:
    """All rows, or of each sequence the last of its tokens."""
    step, last = feed.step, len(feed.batch[0][1]) - 1
    rows = np.arange(step.rows, dtype=np.int32)
    return rows if step.rows >= step.n else rows * step.tokens + last


def _mixed(feed: Feed) -> np.ndarray:
    """(N, columns): what each row takes of the adapters."""
    step, columns = feed.step, [feed.columns(past.adapters) for past, _ in feed.batch]
    padding = [np.zeros_like(columns[0])] * (step.sequences - len(columns))
    return np.repeat([*columns, *padding], step.tokens, axis=0)


def _table(feed: Feed) -> np.ndarray:
    """(sequences, kv_length): the cells in order, the step's own at the end."""
    step = feed.step
    out = np.zeros((step.sequences, step.kv_length), np.int32)
    own = step.kv_length - step.tokens
    for row, (past, ids), new in zip(out, feed.batch, feed.taken, strict=False):
        row[own - len(past) : own] = past.cells
        row[own : own + len(ids)] = new.cells
    return out


def _mask(feed: Feed, window: int) -> np.ndarray:
    """(sequences, 1, tokens, kv_length): 0 where a token may look, not ahead (if `causal`), not
    out of its window, not at padding."""
    step = feed.step
    out = np.empty((step.sequences, 1, step.tokens, step.kv_length), np.float32)
    out.fill(MASKED)
    own = step.kv_length - step.tokens
    for rows, (sequence, ids) in zip(out[:, 0], feed.batch, strict=False):
        past = len(sequence)
        if len(ids) == 1:  # all that is there, without looking at each
            back = min(past, window - 1) if window else past
            rows[0, own - back : own + 1] = 0
            continue
        looked_at = np.arange(-past, len(ids))
        looking = np.arange(len(ids))[:, None]
        seen = (looked_at <= looking) | (not feed.causal)
        if window:
            seen &= looking - looked_at < window
        rows[: len(ids), own - past : own + len(ids)][seen] = 0
    return out


_MADE: dict[str, Callable[[Feed], np.ndarray]] = {
    "tokens": lambda f: _flat(f.step, [ids for _, ids in f.batch]),
    "positions": lambda f: _flat(
        f.step, [range(len(past), len(past) + len(ids)) for past, ids in f.batch]
    ),
    "cells": lambda f: _flat(f.step, [new.cells for new in f.taken]),
    "state_in": lambda f: _flat(f.step, [[past.slot] for past, _ in f.batch], 1),
    "state_out": lambda f: _flat(f.step, [[new.slot] for new in f.taken], 1),
    "table": _table,
    "out_ids": _asked,
    "adapters": _mixed,
}
