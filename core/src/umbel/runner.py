"""Runs steps: batches of sequences go through a plan of their shape, and their state moves on.

A batch is either one sequence with many tokens (prefill) or many sequences with one token each
(decode). Plans are made once per shape and kept while they are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from umbel.batch import Batch, feeds
from umbel.errors import (
    CancelledError,
    ContextFullError,
    DeviceError,
    OptionError,
    OutOfMemoryError,
)
from umbel.gguf.types import BY_NAME
from umbel.graph import MASKED, Graph, Role, Tensor
from umbel.models import ModelDefinition, StateShape, StepShape
from umbel.plan import Arenas, Placer, Plan, States, Target, Weights, make
from umbel.state import Cache, Pool, Taken
from umbel.state import Sequence as Seq
from umbel.state.shift import shift_graph

PLANS = 24  # that are kept
RETRIES = 8  # of a step that was cancelled in place of another model's
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
    """A model on its devices. One thread at a time may use it: the engine's, once it runs."""

    def __init__(
        self, definition: ModelDefinition, targets: Sequence[Target], settings: Settings
    ) -> None:
        self.definition = definition
        self.targets = list(targets)
        self.settings = settings
        self.cancelled = False  # steps are refused, and the one that runs is being stopped
        self._placer = Placer(self.targets, definition.ops)
        self._plans: OrderedDict[StepShape, Plan] = OrderedDict()
        infos = [t.info for t in targets]
        self.buckets = next((i.token_buckets for i in infos if i.token_buckets), ())
        self.lengths = next((i.length_buckets for i in infos if i.length_buckets), ())
        self.widest = max(self.buckets, default=1 << 31)  # sequences or tokens of a step
        self.longest_piece = min(settings.ubatch, settings.ctx, self.widest)
        self._make_memory()
        self.state_shape = self._state_shape()
        self.cache = self._prepare()

    # set-up

    def _make_memory(self) -> None:
        tensors = self.definition.file.tensors
        infos = {n: Tensor(t.shape, t.dtype, Role.WEIGHT, n) for n, t in tensors.items()}
        self.weights = Weights(self.definition.file.array, infos)
        self.arenas = Arenas(self._forget_plans)
        self.states = States()

    def _state_shape(self) -> StateShape:
        s = self.settings
        if s.kv not in ("f32", "f16", "q8_0"):
            msg = "a KV cache cannot be stored like that"
            raise OptionError(msg, where="kv", expected="f32, f16 or q8_0", got=s.kv)
        hp, dtype = self.definition.hparams, BY_NAME[s.kv]
        for row in (n * size for n in hp.n_head_kv for size in (hp.head_dim_k, hp.head_dim_v)):
            if row % dtype.block:
                msg = f"rows of {row} values cannot be stored as {dtype}"
                raise OptionError(msg, where="kv", expected="f16 or f32", got=s.kv)
        slots = 2 + s.parallel * 8  # current, next, snapshots and marks of each sequence
        cells = 1 + s.ctx * s.parallel
        return StateShape(cells, slots, dtype, n_ctx=s.ctx)

    def _prepare(self) -> Cache:
        """Places decode and the worst prefill before any weight is loaded; makes the state."""
        s = self.settings
        if self.definition.architecture.pooled:
            self.recurrent = False
            return Cache(None, None)
        worst = self.padded(StepShape(self.longest_piece, 1, s.ctx, 1))
        decode = self.padded(StepShape(1, 1, s.ctx, 1))
        graphs = [self.definition.graph(shape, self.state_shape) for shape in (decode, worst)]
        self.cache_ropes = graphs[0].cache_ropes
        states = graphs[0].states
        homes = self._placer.homes([g.graph for g in graphs])
        self._check_memory(states, homes)
        for name, tensor in states.items():
            self.states.add(tensor, homes[name])
        kv = any(name.startswith("k_cache") for name in states)
        self.recurrent = any(not name.startswith(("k_cache", "v_cache")) for name in states)
        self.plan(worst)
        return Cache(
            Pool(self.state_shape.cells, 1, "cells in the KV cache") if kv else None,
            Pool(self.state_shape.slots, 2, "recurrent states") if self.recurrent else None,
        )

    def _check_memory(self, states: Mapping[str, Tensor], homes: Mapping[str, Target]) -> None:
        """Refuses a context that cannot fit, before any of it is taken."""
        for home in set(homes.values()):
            sizes = (
                home.buffer_type.alloc_size(states[n]) for n, h in homes.items() if h is home
            )
            need, free = sum(sizes), home.info.memory_free
            if 0 < free < need:
                msg = f"the context does not fit into the memory of {home.name}"
                do = "take a smaller ctx or parallel, or kv q8_0"
                raise OutOfMemoryError(msg, expected=f"at most {free} bytes", got=need, do=do)

    # plans

    def plan(self, shape: StepShape) -> Plan:
        """What runs steps of this (padded) shape; made at the first of them."""
        if shape not in self._plans:
            plan = self.make(self.definition.graph(shape, self.state_shape).graph)
            self._plans[shape] = plan
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)[1].forget()
        self._plans.move_to_end(shape)
        return self._plans[shape]

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
            if placed.target.device.backend != first.device.backend:
                msg = f"{placed.origin} does not run on {first.name}"
                why = self._placer.refusals.get(f"{placed.origin} on {first.name}")
                do = "leave out --strict, or choose another device"
                raise DeviceError(msg, where=placed.target.name, got=why, do=do)

    def _forget_plans(self) -> None:
        for plan in self._plans.values():
            plan.forget()
        self._plans.clear()

    def padded(self, shape: StepShape) -> StepShape:
        """The shape that a plan exists for: tokens and length as the devices take them."""
        tokens, sequences = shape.tokens, shape.sequences
        if self.buckets:
            n = _bucket(shape.n, self.buckets, "tokens in a step")
            tokens, sequences = (1, n) if tokens == 1 else (n, 1)
        needed = shape.kv_length - shape.tokens + tokens
        length = -(-needed // LENGTH) * LENGTH
        if self.lengths:
            length = _bucket(needed, self.lengths, "tokens of context")
        rows = tokens * sequences if 1 < shape.rows == shape.n else shape.rows
        return StepShape(tokens, sequences, length, rows)

    # steps

    def forward(self, sequence: Seq, ids: list[int], *, every: bool = False) -> np.ndarray:
        """Computes `ids` after the sequence's tokens: logits (1, n_vocab) of the last one.

        With `every`, of all of them: (n, n_vocab). Long inputs go through in pieces. When a
        piece fails or is cancelled, the sequence is what it was.
        """
        self.check_room(len(sequence) + len(ids))
        before = self.cache.fork(sequence)
        parts: list[np.ndarray] = []
        try:
            while ids:
                piece = self.piece(ids)
                parts.append(self.step([(sequence, piece)], len(piece) if every else 1))
                ids = ids[len(piece) :]
        except BaseException:
            self.cache.restore(sequence, before)
            raise
        self.cache.close(before)
        return np.concatenate(parts) if every else parts[-1]

    def decode(self, sequences: Sequence[Seq], ids: Sequence[int]) -> np.ndarray:
        """One token more for each of at most `widest` sequences: logits (n, n_vocab)."""
        return self.step([(s, [i]) for s, i in zip(sequences, ids, strict=True)], len(ids))

    def encode(self, ids: list[int]) -> np.ndarray:
        """Hidden states (n, n_embd) of a model that reads its whole input at once."""
        self.check_room(len(ids))
        plan, n = self.plan(self.encoder_shape(len(ids))), len(ids)
        arrays = {t.name: np.zeros(t.shape, np.float32) for t, _ in plan.inputs}
        arrays["tokens"][:n], arrays["positions"][:n] = ids, range(n)
        arrays["mask"][..., n:] = MASKED
        return self._run(plan, arrays)[0][:n]

    def encoder_shape(self, n: int) -> StepShape:
        """The shape of the step that encodes `n` tokens."""
        n = _bucket(n, self.buckets, "tokens in a step") if self.buckets else n
        return StepShape(n, 1, n, n)

    def check_room(self, tokens: int, *, answer: bool = False) -> None:
        """Refuses a text that cannot fit, or leaves no room for an `answer`."""
        most = self.settings.ctx - answer
        if tokens > most:
            msg = f"the text does not fit into the context of {self.settings.ctx} tokens"
            expected, do = f"at most {most} tokens", "shorten it, or load with a larger ctx"
            raise ContextFullError(msg, expected=expected, got=f"{tokens} tokens", do=do)

    def piece(self, ids: list[int]) -> list[int]:
        """The first tokens of a prompt: as many as one step takes."""
        n = min(self.longest_piece, len(ids))
        if self.recurrent and self.buckets:  # padding tokens would change the state
            n = max((b for b in self.buckets if b <= n), default=1)
        return ids[:n]

    def step(self, batch: Batch, rows: int) -> np.ndarray:
        """One step: as many tokens for each sequence, logits (rows, n_vocab) of the last ones.

        `rows` is the number of sequences, or that of all tokens. A failure changes nothing.
        """
        t = len(batch[0][1])
        longest = max(len(s) for s, _ in batch) + t
        shape = self.padded(StepShape(t, len(batch), longest, rows))
        plan = self.plan(shape)
        taken: list[Taken] = []
        try:
            for sequence, ids in batch:
                taken.append(self.cache.begin(sequence, len(ids)))
            arrays = feeds((t.name for t, _ in plan.inputs), shape, batch, taken)
            logits = self._run(plan, arrays)[0]
        except BaseException:
            for places in taken:
                self.cache.abort(places)
            raise
        for (sequence, ids), places in zip(batch, taken, strict=True):
            self.cache.commit(sequence, ids, places)
        return logits[:rows]

    def _run(self, plan: Plan, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Runs a plan that may begin anew: it reads nothing that it has written."""
        for _ in range(RETRIES):
            try:
                return plan.run(arrays, self._stops)
            except CancelledError as error:
                if self.cancelled:
                    raise
                cause = error  # unasked: somebody else, on the same device, was meant
        msg = "the device cancels steps that nobody wants cancelled"
        raise DeviceError(msg, got=f"{RETRIES} times for one step") from cause

    @property
    def room(self) -> int:
        """How many sequences there is state for to take one token more."""
        return self.cache.room

    def cancel(self) -> None:
        """Stops the step that is running now; from any thread."""
        self.cancelled = True
        for target in self.targets:
            target.cancel(target.device)

    def _stops(self) -> bool:
        return self.cancelled

    def close(self) -> None:
        """Gives all memory back."""
        self._forget_plans()
        self._make_memory()

    # a full context

    def shift(self, sequence: Seq, keep: int) -> int:
        """Drops half of what follows the first `keep` tokens; says how many tokens that was.

        Keys are turned to their new positions where the model has rotary positions and nobody
        shares the cells; else what is left is prefilled again. A shifted context is another
        context. When this fails, the sequence is cut to its first tokens.
        """
        dropped = (len(sequence) - keep) // 2
        rest = sequence.tokens[keep + dropped :]
        try:
            if self._turn(sequence.cells[keep + dropped :], -dropped):
                self.cache.drop_span(sequence, keep, keep + dropped)
                sequence.shifts += 1
                return dropped
            kept = sequence.tokens[:keep]
            left = self.cache.rewind(sequence, keep)
            self.forward(sequence, [*kept[left:], *rest])
        except BaseException:
            self.cache.rewind(sequence, keep)
            raise
        return dropped

    def _turn(self, cells: np.ndarray, turns: int) -> bool:
        """Turns the keys of these cells by so many positions, if that can be done in place."""
        pool = self.cache.cells
        caches = sum(name.startswith("k_cache") for name in self.states.tensors)
        if self.recurrent or pool is None or pool.shared(cells):
            return False
        if len(self.cache_ropes) < caches:
            return False
        plan = self.make(shift_graph(self.cache_ropes, self.definition.ops, len(cells)))
        try:
            plan.run({"cells": cells, "turns": np.full_like(cells, turns)}, self._stops)
        except CancelledError:
            if self.cancelled:
                raise
            return False  # unasked, and some keys are turned already: not to be run again
        finally:
            plan.forget()
        return True


def _bucket(n: int, buckets: Sequence[int], what: str) -> int:
    fits = [b for b in buckets if b >= n]
    if not fits:
        msg = f"the device cannot take so many {what}"
        raise DeviceError(msg, expected=f"at most {max(buckets)}", got=n, do="lower ctx")
    return min(fits)
