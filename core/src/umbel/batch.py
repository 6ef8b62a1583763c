"""The inputs of a step: a batch of sequences as the arrays that a model's graph reads.

The step may be larger than the batch: padding tokens belong to scratch places.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from umbel.graph import MASKED
from umbel.models import StepShape
from umbel.state import Mix, Taken
from umbel.state import Sequence as Seq

# As many new tokens for each sequence; whole texts of any length for an encoder.
Batch = Sequence[tuple[Seq, list[int]]]


def feeds(
    names: Iterable[str],
    step: StepShape,
    batch: Batch,
    taken: Sequence[Taken],
    causal: bool,
    adapters: Callable[[Mix], np.ndarray],
) -> dict[str, np.ndarray]:
    """The inputs of these names, as the model's builder documents them."""
    s, t = step.sequences, step.tokens
    made: dict[str, Callable[[], np.ndarray]] = {
        "tokens": lambda: _flat(s, t, [ids for _, ids in batch]),
        "positions": lambda: _flat(s, t, [_positions(*one) for one in batch]),
        "cells": lambda: _flat(s, t, [new.cells for new in taken]),
        "state_in": lambda: _flat(s, 1, [[past.slot] for past, _ in batch]),
        "state_out": lambda: _flat(s, 1, [[new.slot] for new in taken]),
        "table": lambda: _table(step, batch, taken),
        "out_ids": lambda: _asked(step, len(batch[0][1])),
        "adapters": lambda: _mixed(step, [adapters(past.adapters) for past, _ in batch]),
    }
    given: dict[str, np.ndarray] = {}
    for name in names:
        kind, _, window = name.partition(":")
        if kind in made:
            given[name] = made[kind]()
        else:
            given[name] = _mask(step, batch, int(window or 0), causal)
    return given


def _positions(past: Seq, ids: list[int]) -> range:
    return range(len(past), len(past) + len(ids))


def _asked(step: StepShape, n: int) -> np.ndarray:
    """All rows, or of each sequence the last of its `n` tokens."""
    rows = np.arange(step.rows, dtype=np.int32)
    return rows if step.rows >= step.n else rows * step.tokens + (n - 1)


def _mixed(step: StepShape, columns: list[np.ndarray]) -> np.ndarray:
    """What each row takes of the adapters."""
    padding = [np.zeros_like(columns[0])] * (step.sequences - len(columns))
    return np.repeat([*columns, *padding], step.tokens, axis=0)


def _flat(
    sequences: int, tokens: int, rows: Sequence[Sequence[int] | np.ndarray]
) -> np.ndarray:
    """(sequences * tokens,) of int32; padding is 0."""
    if sequences == 1 and len(rows[0]) == tokens:
        return np.array(rows[0], np.int32)
    out = np.zeros((sequences, tokens), np.int32)
    for row, values in zip(out, rows, strict=False):
        row[: len(values)] = values
    return out.reshape(-1)


def _table(step: StepShape, batch: Batch, taken: Sequence[Taken]) -> np.ndarray:
    """(sequences, kv_length): the cells in order, the step's own at the end."""
    out = np.zeros((step.sequences, step.kv_length), np.int32)
    own = step.kv_length - step.tokens
    for row, (sequence, ids), new in zip(out, batch, taken, strict=False):
        row[own - len(sequence) : own] = sequence.cells
        row[own : own + len(ids)] = new.cells
    return out


def _mask(step: StepShape, batch: Batch, window: int, causal: bool) -> np.ndarray:
    """(sequences, 1, tokens, kv_length): 0 where a token may look, not ahead (if `causal`), not
    out of its window, not at padding."""
    out = np.empty((step.sequences, 1, step.tokens, step.kv_length), np.float32)
    out.fill(MASKED)
    own = step.kv_length - step.tokens
    for rows, (sequence, ids) in zip(out[:, 0], batch, strict=False):
        past = len(sequence)
        if len(ids) == 1:  # all that is there, without looking at each
            back = min(past, window - 1) if window else past
            rows[0, own - back : own + 1] = 0
            continue
        looked_at = np.arange(-past, len(ids))
        looking = np.arange(len(ids))[:, None]
        seen = (looked_at <= looking) | (not causal)
        if window:
            seen &= looking - looked_at < window
        rows[: len(ids), own - past : own + len(ids)][seen] = 0
    return out
