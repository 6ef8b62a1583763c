"""A plain interpreter of steps: what an engine does around the graphs, in the simplest way.

Every node is computed by its reference. The cells of the sequences lie scattered over the
caches, and each row of the table is padded, so that a test sees it when either matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from umbel import gguf
from umbel.graph import MASKED, Role, Tensor
from umbel.models import ModelDefinition, StateShape, StepShape, architecture
from umbel.ops import OPS
from umbel_kit.reference import evaluate

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
CELLS, SLOTS, PADDING = 256, 8, 5


class Sequence:
    """One text: where its keys and values lie, and the slot of its recurrent state."""

    def __init__(self, slot: int) -> None:
        self.cells: list[int] = []
        self.slot = slot


class Runner:
    """A model and its state."""

    def __init__(self, file: gguf.GGUFFile, n_ctx: int = 0) -> None:
        found = architecture(file.get("general.architecture", str))
        self.definition = ModelDefinition(file, found, OPS)
        self.state_shape = StateShape(CELLS, SLOTS, n_ctx=n_ctx)
        self.state: dict[str, np.ndarray] = {}
        self.free_cells = list(np.random.default_rng(0).permutation(np.arange(1, CELLS)))
        self.free_slots = list(range(1, SLOTS))

    def open(self) -> Sequence:
        """A new sequence, whose recurrent state is zero."""
        slot = self.free_slots.pop(0)
        for name, array in self.state.items():
            if not name.startswith(("k_cache", "v_cache")):
                array[slot] = 0
        return Sequence(slot)

    def step(self, batch: list[tuple[Sequence, Any]], rows: Any = None) -> np.ndarray:
        """The results after the next tokens of each sequence: (sequences, tokens, n), or
        those of some rows: (rows, n)."""
        tokens, count = len(batch[0][1]), len(batch)
        pooled = self.definition.architecture.pooled
        longest = max(len(s.cells) for s, _ in batch) + tokens
        asked = np.arange(tokens * count) if rows is None else np.array(rows)
        kv_length = tokens if pooled else longest + PADDING
        shape = StepShape(tokens, count, kv_length, len(asked))
        model = self.definition.graph(shape, self.state_shape)
        inputs = {t.name: t for t in model.graph.leaves(Role.INPUT)}
        values = self._inputs(inputs, batch, shape) | {"out_ids": asked.astype(np.int32)}
        feeds = {t: values[name] for name, t in inputs.items()}
        feeds |= {t: self._state(t) for t in model.graph.leaves(Role.STATE)}
        for t in model.graph.leaves(Role.WEIGHT):
            feeds[t] = self.definition.file.array(t.name)
        output = evaluate(model.graph, feeds)[0]
        for i, (sequence, _) in enumerate(batch):
            self.free_slots.append(sequence.slot)
            sequence.slot = int(values["state_out"][i])
        return output.reshape(count, tokens, -1) if rows is None else output

    def _state(self, t: Tensor) -> np.ndarray:
        # Scratch is poisoned: cell 0 must never be looked at.
        if t.name not in self.state:
            self.state[t.name] = np.zeros(t.shape, np.float32)
            self.state[t.name][0] = 1e3
        return self.state[t.name]

    def _inputs(
        self, inputs: dict[str, Tensor], batch: list[tuple[Sequence, Any]], step: StepShape
    ) -> dict[str, np.ndarray]:
        positions = np.array([np.arange(step.tokens) + len(s.cells) for s, _ in batch])
        table = np.zeros((step.sequences, step.kv_length), np.int32)
        seen_at = np.full(table.shape, -1)  # the position behind each entry of the table
        new = []
        for i, (sequence, ids) in enumerate(batch):
            past, own = sequence.cells, [self.free_cells.pop() for _ in ids]
            table[i, : len(past)], table[i, -len(own) :] = past, own
            seen_at[i, : len(past)] = np.arange(len(past))
            seen_at[i, -len(own) :] = positions[i]
            sequence.cells = past + own
            new += own
        taken = [self.free_slots.pop(0) for _ in batch]
        values = {
            "tokens": np.concatenate([ids for _, ids in batch]),
            "positions": positions.ravel(),
            "cells": np.array(new),
            "table": table,
            "state_in": np.array([s.slot for s, _ in batch]),
            "state_out": np.array(taken),
        }
        values = {name: v.astype(np.int32) for name, v in values.items()}
        causal = not self.definition.architecture.pooled
        masks = {name for name in inputs if name.startswith("mask")}
        for name in masks:
            window = int(name.partition(":")[2] or 0)
            values[name] = _mask(positions, seen_at, window, causal)
        return values

    def whole(self, ids: Any) -> np.ndarray:
        """The results of one text in one batch."""
        return self.step([(self.open(), ids)])[0]

    def one_by_one(self, ids: Any, first: int = 0) -> np.ndarray:
        """The same, token by token after the first few."""
        sequence = self.open()
        parts = [self.step([(sequence, ids[:first])])[0]] if first else []
        parts += [self.step([(sequence, ids[i : i + 1])])[0] for i in range(first, len(ids))]
        return np.concatenate(parts)

    def interleaved(self, ids: Any, others: Any) -> tuple[np.ndarray, np.ndarray]:
        """Two texts at once: the first goes ahead by two tokens, the second then takes one step
        alone, and the rest goes by one, two or three tokens of both."""
        one, two = self.open(), self.open()
        a, b = [self.step([(one, ids[:2])])[0]], [self.step([(two, others[:1])])[0]]
        i, lengths = 2, itertools.cycle((1, 1, 3, 2))
        while i < len(ids):
            n = min(next(lengths), len(ids) - i)
            left, right = self.step([(one, ids[i : i + n]), (two, others[i - 1 : i - 1 + n])])
            a.append(left)
            b.append(right)
            i += n
        return np.concatenate(a), np.concatenate(b)


def _mask(positions: np.ndarray, seen_at: np.ndarray, window: int, causal: bool) -> np.ndarray:
    back = positions[:, :, None] - seen_at[:, None, :]  # (sequences, tokens, kv_length)
    seen = (seen_at >= 0)[:, None, :] & ((back >= 0) | (not causal))
    if window:
        seen &= back < window
    return np.where(seen, 0, MASKED).astype(np.float32)[:, None]


@pytest.fixture
def load() -> Iterator[Callable[..., Runner]]:
    """A model of the oracle folder by its name, or of a path."""
    files: list[gguf.GGUFFile] = []

    def opened(name: str | Path, n_ctx: int = 0) -> Runner:
        path = name if isinstance(name, Path) else ORACLES / f"{name}.gguf"
        files.append(gguf.open(path))
        return Runner(files[-1], n_ctx)

    yield opened
    for file in files:
        file.close()


@pytest.fixture
def write(tmp_path: Path, write_gguf: Callable[..., Path]) -> Callable[..., Path]:
    """A new file from keys and tensors."""
    return lambda keys, tensors: write_gguf(tmp_path / "new.gguf", keys, tensors)


@pytest.fixture
def rewrite(tmp_path: Path, write_gguf: Callable[..., Path]) -> Callable[..., Path]:
    """A model of the oracle folder with other keys (without the prefix) or tensors.

    None takes one away; a text as a tensor copies the tensor of that name.
    """

    def rewritten(name: str, keys: Any = None, tensors: Any = None) -> Path:
        with gguf.open(ORACLES / f"{name}.gguf") as file:
            arch = file.get("general.architecture", str)
            changed = {f"{arch}.{key}": value for key, value in (keys or {}).items()}
            new_keys = {k: v for k, v in file.metadata.items() if "tokenizer" not in k}
            new_keys = {k: v for k, v in (new_keys | changed).items() if v is not None}
            old = {t.name: (file.array(t.name), t.dtype.number) for t in file.tensors.values()}
            new = old | {
                k: old[v] if isinstance(v, str) else v for k, v in (tensors or {}).items()
            }
            new = {k: v for k, v in new.items() if v is not None}
            path = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.gguf"
            return write_gguf(path, new_keys, new)

    return rewritten
