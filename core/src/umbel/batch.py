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
    s, t, n = step.sequences, step.tokens, len(batch[0][1])
    rows = np.arange(step.rows, dtype=np.int32)
    positions = [range(len(past), len(past) + len(ids)) for past, ids in batch]
    made = {
        "tokens": _flat(s, t, [ids for _, ids in batch]),
        "positions": _flat(s, t, positions),
        "cells": _flat(s, t, [new.cells for new in taken]),
        "state_in": _flat(s, 1, [[past.slot] for past, _ in batch]),
        "state_out": _flat(s, 1, [[new.slot] for new in taken]),
        "table": _table(step, batch, taken),
        "out_ids": rows if step.rows >= step.n else rows * t + (n - 1),
    }
    if step.adapted:
        columns = [adapters(sequence.adapters) for sequence, _ in batch]
        padding = [np.zeros_like(columns[0])] * (s - len(batch))
        made["adapters"] = np.repeat([*columns, *padding], t, axis=0)
    for name in set(names) - made.keys():
        window = int(name.partition(":")[2] or 0)
        made[name] = _mask(step, batch, window, causal)
    return made


def _flat(
    sequences: int, tokens: int, rows: Sequence[Sequence[int] | np.ndarray]
) -> np.ndarray:
    """(sequences * tokens,) of int32; padding is 0."""
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
    out = np.full((step.sequences, 1, step.tokens, step.kv_length), MASKED, np.float32)
    own = step.kv_length - step.tokens
    for rows, (sequence, ids) in zip(out[:, 0], batch, strict=False):
        past = len(sequence)
        looked_at = np.arange(-past, len(ids))
        looking = np.arange(len(ids))[:, None]
        seen = (looked_at <= looking) | (not causal)
        if window:
            seen &= looking - looked_at < window
        rows[: len(ids), own - past : own + len(ids)][seen] = 0
    return out
