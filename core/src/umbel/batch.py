"""The inputs of a step: a batch of sequences as the arrays that a model's graph reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from umbel.graph import MASKED
from umbel.models import ModelGraph
from umbel.state import Sequence as Seq
from umbel.state import Taken


@attrs.frozen
class Feeds:
    """The inputs of a step, as the model's builder documents them."""

    model: ModelGraph
    batch: list[tuple[Seq, list[int]]]
    taken: list[Taken]

    def arrays(self) -> dict[str, np.ndarray]:
        makers: Mapping[str, Callable[[str], np.ndarray]] = {
            "tokens": lambda _: self._flat([ids for _, ids in self.batch]),
            "positions": lambda _: self._flat(
                [range(len(s), len(s) + len(ids)) for s, ids in self.batch]
            ),
            "cells": lambda _: self._flat([t.cells for t in self.taken]),
            "out_ids": lambda _: self._out_ids(),
            "table": lambda _: self._table(),
            "mask": self._mask,
            "state_in": lambda _: self._slots([s.slot for s, _ in self.batch]),
            "state_out": lambda _: self._slots([t.slot for t in self.taken]),
        }
        return {name: makers[name.partition(":")[0]](name) for name in self.model.inputs}

    def _flat(self, rows: Sequence[Sequence[int] | np.ndarray | range]) -> np.ndarray:
        """(sequences, tokens) of int32, flat; padding is 0."""
        step = self.model.step
        out = np.zeros((step.sequences, step.tokens), np.int32)
        for row, values in zip(out, rows, strict=False):
            row[: len(values)] = values
        return out.reshape(-1)

    def _slots(self, slots: list[int]) -> np.ndarray:
        out = np.zeros(self.model.step.sequences, np.int32)
        out[: len(slots)] = slots
        return out

    def _out_ids(self) -> np.ndarray:
        step = self.model.step
        n = len(self.batch[0][1])
        if step.rows >= step.n and step.n > 1:
            return np.arange(step.rows, dtype=np.int32)
        last = np.arange(step.rows, dtype=np.int32) * step.tokens
        return last + (n - 1)

    def _table(self) -> np.ndarray:
        step = self.model.step
        out = np.zeros((step.sequences, step.kv_length), np.int32)
        own = step.kv_length - step.tokens
        for row, (sequence, ids), taken in zip(out, self.batch, self.taken, strict=False):
            row[own - len(sequence) : own] = sequence.cells
            row[own : own + len(ids)] = taken.cells
        return out

    def _mask(self, name: str) -> np.ndarray:
        """0 where a token may look: not ahead, not out of its window, not at padding."""
        step = self.model.step
        window = int(name.partition(":")[2] or 0)
        out = np.full((step.sequences, 1, step.tokens, step.kv_length), MASKED, np.float32)
        own = step.kv_length - step.tokens
        for rows, (sequence, ids) in zip(out[:, 0], self.batch, strict=False):
            past = len(sequence)
            looked_at = np.arange(-past, len(ids))
            looking = np.arange(len(ids))[:, None]
            seen = looked_at <= looking
            if window:
                seen &= looking - looked_at < window
            rows[: len(ids), own - past : own + len(ids)][seen] = 0
        return out
