"""Runs steps: batches of sequences go through a plan of their shape, and their state moves on.

A batch is either one sequence with many tokens (prefill) or many sequences with one token each
(decode). Plans are made once per shape and kept while they are used.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from umbel.batch import Feeds
from umbel.errors import ContextFullError, DeviceError, OptionError
from umbel.gguf.types import BY_NAME
from umbel.graph import Graph, Role, Tensor
from umbel.models import ModelDefinition, ModelGraph, StateShape, StepShape
from umbel.plan import Arenas, Placer, Plan, States, Target, Weights, make
from umbel.state import Cache, Pool, Taken
from umbel.state import Sequence as Seq
from umbel.state.shift import shift_graph

log = logging.getLogger("umbel")

PLANS = 24  # that are kept
LENGTH = 256  # KV lengths are multiples of this where a device has no buckets


@attrs.frozen(kw_only=True)
class Settings:
    """How much room a model gets, and how strict it is."""

    ctx: int  # tokens of one sequence
    parallel: int = 1  # sequences that can be full at once
    ubatch: int = 512  # tokens of one step at most
    kv: str = "f32"
    check: bool = False
    strict: bool = False


class Runner:
    """A model on its devices."""

    def __init__(
        self, definition: ModelDefinition, targets: Sequence[Target], settings: Settings
    ) -> None:
        self.definition = definition
        self.targets = list(targets)
        self.settings = settings
        self.lock = threading.RLock()
        self._placer = Placer(self.targets, definition.ops)
        self._plans: OrderedDict[StepShape, tuple[ModelGraph, Plan]] = OrderedDict()
        infos = {
            name: Tensor(info.shape, info.dtype, Role.WEIGHT, name)
            for name, info in definition.file.tensors.items()
        }
        self.weights = Weights(definition.file.array, infos)
        self.arenas = Arenas(self._forget_plans)
        self.states = States()
        self.state_shape = self._state_shape()
        self.buckets = next((t.info.token_buckets for t in targets if t.info.token_buckets), ())
        self.lengths = next(
            (t.info.length_buckets for t in targets if t.info.length_buckets), ()
        )
        self.cache = self._prepare()

    # set-up

    def _state_shape(self) -> StateShape:
        s = self.settings
        if s.kv not in ("f32", "f16", "q8_0"):
            msg = "a KV cache cannot be stored like that"
            raise OptionError(msg, where="kv", expected="f32, f16 or q8_0", got=s.kv)
        slots = 2 + s.parallel * 8  # current, next, snapshots and marks of each sequence
        cells = 1 + s.ctx * s.parallel
        return StateShape(cells, slots, BY_NAME[s.kv], n_ctx=s.ctx)

    def _prepare(self) -> Cache:
        """Places decode and the worst prefill before any weight is loaded; makes the state."""
        s = self.settings
        if self.definition.architecture.pooled:
            self.recurrent = False
            return Cache(None, None)
        worst = self.padded(StepShape(min(s.ubatch, s.ctx), 1, s.ctx, 1))
        decode = self.padded(StepShape(1, 1, s.ctx, 1))
        graphs = [self.definition.graph(shape, self.state_shape) for shape in (decode, worst)]
        self.cache_ropes = graphs[0].cache_ropes
        states = graphs[0].states
        self._refuse_wide_rows(states.values())
        homes = self._placer.homes([g.graph for g in graphs])
        for name, tensor in states.items():
            self.states.add(tensor, homes[name])
        kv = any(name.startswith("k_cache") for name in states)
        self.recurrent = any(not name.startswith(("k_cache", "v_cache")) for name in states)
        self.plan(worst)
        return Cache(
            Pool(self.state_shape.cells, 1, "cells in the KV cache") if kv else None,
            Pool(self.state_shape.slots, 2, "recurrent states") if self.recurrent else None,
        )

    def _refuse_wide_rows(self, states: Iterable[Tensor]) -> None:
        for t in states:
            if t.shape[-1] % t.dtype.block:
                msg = f"rows of {t.shape[-1]} values cannot be stored as {t.dtype}"
                raise OptionError(msg, where=t.name, expected="kv f16 or f32", got=t.dtype)

    # plans

    def plan(self, shape: StepShape) -> tuple[ModelGraph, Plan]:
        """The plan for steps of this shape."""
        found = self._plans.get(shape)
        if found is None:
            model = self.definition.graph(shape, self.state_shape)
            found = model, self.make(model.graph)
            self._plans[shape] = found
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)[1][1].forget()
        self._plans.move_to_end(shape)
        return found

    def make(self, graph: Graph) -> Plan:
        """A plan for any graph on this model's weights and state."""
        plan = make(
            graph,
            self.targets,
            self.definition.ops,
            self.weights,
            self.states,
            self.arenas,
            placer=self._placer,
            check=self.settings.check,
        )
        if self.settings.strict:
            self._refuse_fallbacks(plan)
        return plan

    def _refuse_fallbacks(self, plan: Plan) -> None:
        first = self.targets[0]
        for placed in plan.placement.nodes:
            if placed.target is not first:
                msg = f"{placed.origin} does not run on {first.name}"
                why = self._placer.refusals.get(f"{placed.origin} on {first.name}")
                do = "leave out --strict, or choose another device"
                raise DeviceError(msg, where=placed.target.name, got=why, do=do)

    def _forget_plans(self) -> None:
        for _, plan in self._plans.values():
            plan.forget()
        self._plans.clear()

    def padded(self, shape: StepShape) -> StepShape:
        """The shape that a plan exists for: tokens and length as the devices take them."""
        tokens, sequences = shape.tokens, shape.sequences
        if self.buckets:
            n = _bucket(shape.n, self.buckets)
            tokens, sequences = (1, n) if tokens == 1 else (n, 1)
        needed = shape.kv_length - shape.tokens + tokens
        length = -(-needed // LENGTH) * LENGTH
        if self.lengths:
            length = _bucket(needed, self.lengths)
        rows = tokens * sequences if 1 < shape.rows == shape.n else shape.rows
        return StepShape(tokens, sequences, length, rows)

    def shift(self, sequence: Seq, keep: int) -> int:
        """Drops half of what follows the first `keep` tokens; says how many tokens that was.

        Keys are turned to their new positions where the model has rotary positions and nobody
        shares the cells; else what is left is prefilled again. A shifted context is another
        context.
        """
        past = len(sequence)
        dropped = (past - keep) // 2
        if keep < 0 or dropped < 1:
            msg = "the context cannot be shifted"
            expected = f"keep from 0 to {max(past - 2, 0)}"
            raise OptionError(msg, where="keep", expected=expected, got=keep)
        cells = sequence.cells[keep + dropped :]
        rest = sequence.tokens[keep + dropped :]
        pool = self.cache.cells
        turnable = not self.recurrent and pool is not None and not pool.shared(cells)
        if not turnable or len(self.cache_ropes) * 2 < len(self.states.tensors):
            kept = sequence.tokens[:keep]
            left = self.cache.rewind(sequence, keep)
            self.forward(sequence, [*kept[left:], *rest])
        else:
            self.cache.drop_span(sequence, keep, keep + dropped)
            with self.lock:
                turn_keys(self, cells, -dropped)
        sequence.shifts += 1
        return dropped

    # steps

    def forward(self, sequence: Seq, ids: list[int], *, every: bool = False) -> np.ndarray:
        """Computes `ids` after the sequence's tokens: logits (1, n_vocab) of the last one.

        With `every`, of all of them: (n, n_vocab). Long inputs go through in pieces. When a
        piece fails or is cancelled, the sequence is what it was.
        """
        self.check_room(sequence, len(ids))
        mark = self.cache.mark(sequence)
        parts = []
        try:
            for piece in self.pieces(ids):
                last = every or len(sequence) + len(piece) == mark.tokens + len(ids)
                rows = len(piece) if every else 1
                logits = self.step([(sequence, piece)], rows)
                if last:
                    parts.append(logits)
        except BaseException:
            self.cache.restore(sequence, mark)
            raise
        self.cache.release(mark)
        return np.concatenate(parts)

    def decode(self, sequences: Sequence[Seq], ids: Sequence[int]) -> np.ndarray:
        """One token more for each sequence: logits (sequences, n_vocab)."""
        return self.step([(s, [i]) for s, i in zip(sequences, ids, strict=True)], len(ids))

    def encode(self, ids: list[int]) -> np.ndarray:
        """Hidden states (n, n_embd) of a model that reads its whole input at once."""
        self.check_room(Seq(), len(ids))
        shape = StepShape(len(ids), 1, len(ids), len(ids))
        with self.lock:
            model, plan = self.plan(shape)
            feeds = {name: np.zeros(t.shape, np.int32) for name, t in model.inputs.items()}
            feeds["tokens"] = np.array(ids, np.int32)
            feeds["positions"] = feeds["out_ids"] = np.arange(len(ids), dtype=np.int32)
            return plan.run(feeds)[0]

    def check_room(self, sequence: Seq, n: int) -> None:
        """Refuses what cannot fit, before anything is computed."""
        if len(sequence) + n > self.settings.ctx:
            msg = "the text does not fit into the context"
            raise ContextFullError(
                msg,
                expected=f"at most {self.settings.ctx} tokens",
                got=f"{len(sequence)} + {n} tokens",
                do="shorten it, or load the model with a larger ctx",
            )

    def pieces(self, ids: list[int]) -> Iterable[list[int]]:
        """The pieces in which a prompt is prefilled."""
        at = 0
        while at < len(ids):
            n = min(self.settings.ubatch, len(ids) - at)
            if self.buckets:
                n = min(n, max(self.buckets))
                if self.recurrent:  # padding tokens would change a recurrent state
                    n = max((b for b in self.buckets if b <= n), default=1)
            yield ids[at : at + n]
            at += n

    def cancel(self) -> None:
        """Stops the step that is running now, from any thread."""
        for target in self.targets:
            target.cancel(target.device)

    def step(self, batch: list[tuple[Seq, list[int]]], rows: int) -> np.ndarray:
        """One step: as many tokens for each sequence, logits (rows, n_vocab) of the last ones.

        `rows` is the number of sequences, or that of all tokens. A failure changes nothing.
        """
        t = len(batch[0][1])
        longest = max(len(s) for s, _ in batch) + t
        asked = StepShape(t, len(batch), longest, rows)
        with self.lock:
            model, plan = self.plan(self.padded(asked))
            taken: list[Taken] = []
            try:
                for sequence, ids in batch:
                    taken.append(self.cache.begin(sequence, len(ids)))
                feeds = Feeds(model, batch, taken).arrays()
                logits = plan.run(feeds)[0][:rows]
            except BaseException:
                for places in taken:
                    self.cache.abort(places)
                raise
            for (sequence, ids), places in zip(batch, taken, strict=True):
                self.cache.commit(sequence, ids, places)
            return logits

    def close(self) -> None:
        self._forget_plans()


def _bucket(n: int, buckets: Sequence[int]) -> int:
    fits = [b for b in buckets if b >= n]
    if not fits:
        msg = "the device has no bucket for so many tokens"
        raise DeviceError(msg, expected=f"at most {max(buckets)}", got=n)
    return min(fits)


def turn_keys(runner: Runner, cells: np.ndarray, turns: int) -> None:
    """Turns the keys of `cells` by so many positions, in place; padded to few plan sizes."""
    n = -(-len(cells) // LENGTH) * LENGTH
    plan = runner.make(shift_graph(runner.cache_ropes, runner.definition.ops, n))
    padded = np.zeros(n, np.int32)
    padded[: len(cells)] = cells
    plan.run({"cells": padded, "turns": np.full(n, turns, np.int32)})
    plan.forget()
