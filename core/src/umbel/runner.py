"""Runs steps: batches of sequences go through a plan of their shape, and their state moves on.

A batch is either one sequence with many tokens (prefill) or many sequences with one token each
(decode), or several whole texts whose hidden states are wanted. Plans are made once per shape
and kept while they are used.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from umbel.adapters import Adapters
from umbel.batch import Batch, Feed
from umbel.errors import ContextFullError, DeviceError
from umbel.gguf.types import BY_NAME, F16, F32, DType
from umbel.graph import Graph, Role, Tensor
from umbel.models import ModelDefinition, StateShape, StepShape
from umbel.models.builder import LORA, AdapterShape, ModelGraph
from umbel.plan import Arenas, Placer, Plan, States, Stop, Target, Weights, make, room
from umbel.plan.emit import Placed
from umbel.plan.memory import Progress
from umbel.plan.stages import stages
from umbel.state import Cache, Mix, Taken
from umbel.state import Sequence as Seq
from umbel.state.shift import shift_graph

PLANS = 24  # that are kept
AUTO = "auto"  # each state is kept as the device where it lives likes it
LENGTH = 256  # KV lengths are multiples of this where a device has no buckets
ENCODED = 16  # and so are lengths of texts of this where hidden states are asked for


@attrs.frozen(kw_only=True)
class Settings:
    """How much room a model gets, and how strict it is."""

    ctx: int  # tokens of one sequence
    parallel: int = 1  # sequences that can be full at once
    ubatch: int = 512  # tokens of one step at most
    kv: str = AUTO
    split: str = "layer"  # what several devices of one backend share: layers, or rows
    offload: int | None = None  # layers for the devices named first; None: all
    adapters: AdapterShape = attrs.field(factory=AdapterShape)
    check: bool = False
    strict: bool = False


class Runner:
    """A model on its devices. One thread at a time may use it: the engine's, once it runs."""

    def __init__(
        self,
        definition: ModelDefinition,
        targets: Sequence[Target],
        settings: Settings,
        progress: Progress | None = None,
        prefill: Sequence[Target] = (),
    ) -> None:
        self.definition = definition
        self.targets = list(targets)  # those of a decode step, and of all where none are below
        self.settings = settings
        self.progress = progress
        self.stop = Stop()  # while it is asked for, steps are refused
        self._placer = self._placer_on(self.targets)
        self._prefill = self._placer_on(prefill) if prefill else self._placer
        self.every = list(dict.fromkeys((*prefill, *targets)))
        self._plans: OrderedDict[StepShape, Plan] = OrderedDict()
        self._drawn: dict[StepShape, Graph] = {}  # at load, until there is a plan
        infos = [t.info for t in self.every]
        self.buckets = next((i.token_buckets for i in infos if i.token_buckets), ())
        self.lengths = next((i.length_buckets for i in infos if i.length_buckets), ())
        self.widest = max(self.buckets, default=1 << 31)  # sequences or tokens of a step
        self.longest_piece = min(settings.ubatch, settings.ctx, self.widest)
        self.encodes = definition.architecture.pooled
        if self.encodes:  # whole texts, without state
            self.longest_piece = settings.ctx
        # the first decode, whose plan is wanted soon, the worst prefill and the worst decode
        full = min(settings.parallel, self.widest)
        shapes = [(1, 1, 1), (self.longest_piece, 1, settings.ctx), (1, full, settings.ctx)]
        shapes = shapes[1:2] if self.encodes else shapes[: min(full, 2) + 1]
        adapted = settings.adapters.slots > 0
        steps = (StepShape(n, seqs, length, seqs, adapted) for n, seqs, length in shapes)
        self.usual = [self.padded(step) for step in steps]
        self._make_memory()
        self._block = max(i.grows for i in infos)
        block = self._block or 1  # the first one is nobody's
        cells = block * (1 + settings.parallel * -(-settings.ctx // block))
        slots = 2 + settings.parallel * 8  # current, next, snapshots and marks of each sequence
        self.state_shape = StateShape(cells, slots, settings.ctx, settings.adapters)
        try:
            self.cache = self._prepare()
        except BaseException:
            self.close()
            raise

    # set-up

    def _placer_on(self, targets: Sequence[Target]) -> Placer:
        n_layer, settings = self.definition.hparams.n_layer, self.settings
        layers = stages(targets, n_layer, settings.split, settings.offload)
        return Placer(targets, self.definition.ops, layers)

    def _make_memory(self) -> None:
        self.weights = Weights(self.definition.file, self.progress)
        self.arenas = Arenas(self._forget_plans)
        self.states = States()
        self.adapters = Adapters(self.settings.adapters, self.states)

    def _prepare(self) -> Cache:
        """Places decode and the worst prefill before any weight is loaded; makes the state."""
        models, homes = self._settle()
        states = {t.name: t for t in models[0].graph.leaves(Role.STATE)}
        self.cache_ropes = models[0].cache_ropes
        for home in dict.fromkeys(homes.values()):
            room.check(home, [t for t in states.values() if homes[t.name] is home])
        for name, tensor in states.items():
            self.states.add(tensor, homes[name])
        self._drawn = {step: m.graph for step, m in zip(self.usual, models, strict=True)}
        for step in self.usual[0 if self.encodes else 1 :]:
            self.plan(step).prepare()
        kinds = {name.partition(".")[0] for name in states if not name.startswith(LORA)}
        cells = self.state_shape.cells if "k_cache" in kinds else 0
        slots = self.state_shape.slots if kinds - {"k_cache", "v_cache"} else 0
        return Cache(cells, slots, block=self._block)

    def _settle(self) -> tuple[list[ModelGraph], dict[str, Target]]:
        """The usual graphs, and where their states live, each kept as it is kept there."""
        kept: dict[str, DType] = {}
        for i, target in enumerate(self.every):
            shape = attrs.evolve(self.state_shape, kept=partial(self._kept, kept, target))
            models = [self.definition.graph(step, shape) for step in self.usual]
            asked = models if self._prefill is self._placer else models[:2][-1:]
            homes = self._prefill.homes([m.graph for m in asked])
            states = models[0].graph.leaves(Role.STATE)
            tried = self.every[: i + 1]
            kept |= {t.name: t.dtype for t in states if homes[t.name] in tried}
            if len(kept) == len(states):
                break
        self.state_shape = shape
        first = self.targets[0]
        for home in homes.values():
            if home not in self.targets and not first.reads(home):
                msg = f"{first.name} cannot read what {home.name} keeps of a prompt"
                raise DeviceError(msg, where="prefill_device", do="leave it out")
        return models, homes

    def _kept(self, known: Mapping[str, DType], home: Target, state: Tensor) -> DType:
        if state.name.startswith(("k_cache.", "v_cache.")) and self.settings.kv != AUTO:
            return BY_NAME[self.settings.kv]
        liked = known.get(state.name) or home.buffer_type.accepts(state)
        return liked if liked in (F32, F16) else F32

    # plans

    def plan(self, shape: StepShape) -> Plan:
        """What runs steps of this (padded) shape; made at the first of them."""
        plan = self._plans.pop(shape, None)
        if plan is None:
            drawn = self._drawn.pop(shape, None)
            graph = drawn or self.definition.graph(shape, self.state_shape).graph
            plan = self.make(graph, prefill=shape.tokens > 1)
            while len(self._plans) >= PLANS:
                self._plans.popitem(last=False)[1].forget()
        self._plans[shape] = plan  # the last one again
        return plan

    def make(self, graph: Graph, *, prefill: bool = False) -> Plan:
        """A plan for any graph on this model's weights and state."""
        memory, check = (self.weights, self.states, self.arenas), self.settings.check
        placer = self._prefill if prefill else self._placer
        plan = make(graph, placer, *memory, check=check)
        if self.settings.strict and (elsewhere := self.elsewhere(plan)):
            placed = elsewhere[0]
            msg = f"{placed.origin} does not run on {plan.first.name}"
            do = "leave out --strict, or choose another device"
            raise DeviceError(msg, where=placed.target.name, got=placed.reason, do=do)
        return plan

    def elsewhere(self, plan: Plan) -> list[Placed]:
        """What does not run on the first backend; casts and what is prepared for others are the
        host's work anyway."""
        first, cast = plan.first.device.backend, self.definition.ops["cast"]
        nodes = (p for p in plan.placement.nodes if not p.ahead and p.node.op is not cast)
        return [p for p in nodes if p.target.device.backend != first]

    def _forget_plans(self) -> None:
        for plan in self._plans.values():
            plan.forget()
        self._plans.clear()

    def padded(self, shape: StepShape) -> StepShape:
        """The shape that a plan exists for: tokens and length as the devices take them."""
        tokens, sequences, whole = shape.tokens, shape.sequences, shape.whole or self.encodes
        if self.buckets:
            n = _bucket(shape.n, self.buckets, "tokens in a step")
            tokens, sequences = (1, n) if tokens == 1 else (n, 1)
        elif whole or (shape.hidden and not self.cache.slots and not self.lengths):
            tokens = min(-(-tokens // ENCODED) * ENCODED, self.longest_piece)
        needed = shape.kv_length - shape.tokens + tokens
        length = -(-needed // LENGTH) * LENGTH
        if self.lengths and not whole:
            length = _bucket(needed, self.lengths, "tokens of context")
        if whole:
            length = tokens
        rows = tokens * sequences if 1 < shape.rows == shape.n else shape.rows
        return StepShape(tokens, sequences, length, rows, *shape[4:])

    # steps

    def forward(
        self, sequence: Seq, ids: list[int], *, every: bool = False, hidden: bool = False
    ) -> np.ndarray:
        """Computes `ids` after the sequence's tokens: logits (1, n_vocab) of the last one.

        With `every`, of all of them: (n, n_vocab); with `hidden`, hidden states (..., n_embd).
        Long inputs go through in pieces. When a piece fails or is cancelled, the sequence is
        what it was.
        """
        self.check_room(len(sequence) + len(ids))
        before = self.cache.fork(sequence)
        parts: list[np.ndarray] = []
        try:
            while ids:
                piece = self.piece(ids, len(sequence))
                rows = len(piece) if every else 1
                parts.append(self.step([(sequence, piece)], rows, hidden=hidden))
                ids = ids[len(piece) :]
        except BaseException:
            self.cache.restore(sequence, before)
            raise
        self.cache.close(before)
        return np.concatenate(parts) if every else parts[-1]

    def decode(self, sequences: Sequence[Seq], ids: Sequence[int]) -> np.ndarray:
        """One token more for each of at most `widest` sequences: logits (n, n_vocab)."""
        return self.step([(s, [i]) for s, i in zip(sequences, ids, strict=True)], len(ids))

    def together(self, lengths: Sequence[int]) -> int:
        """How many texts of these lengths, the longest first, `hidden` computes in one step:
        those that are padded to one length, and a power of two, so that there are few plans."""
        tokens = self._whole(lengths[0])
        if self.buckets or not tokens:
            return 1
        most = max(self.longest_piece // tokens, 1)
        alike = sum(self._whole(length) == tokens for length in lengths[:most])
        return 1 << alike.bit_length() - 1

    def _whole(self, length: int) -> int:
        """Tokens of the step that a text goes through by itself, without state; 0: of none."""
        if not self.encodes and (length > self.longest_piece or self.cache.slots):
            return 0
        return self.padded(StepShape(length, 1, length, 1, whole=True)).tokens

    def hidden(self, texts: Sequence[list[int]], adapters: Mix = ()) -> list[np.ndarray]:
        """The hidden states of whole texts, the longest first: (n, n_embd) each."""
        batch = [(Seq(adapters=adapters), ids) for ids in texts]
        try:
            if tokens := self._whole(len(texts[0])):
                rows = len(batch) * tokens
                made = self.step(batch, rows, hidden=not self.encodes, whole=True)
                states = [*made.reshape(len(batch), tokens, -1)]
            else:
                states = [self.forward(*one, every=True, hidden=True) for one in batch]
            return [rows[: len(ids)] for rows, ids in zip(states, texts, strict=True)]
        finally:
            for sequence, _ in batch:
                self.cache.close(sequence)

    def check_room(self, tokens: int, *, answer: bool = False, where: object = None) -> None:
        """Refuses a text that cannot fit, or leaves no room for an `answer`."""
        most = self.settings.ctx - answer
        if tokens > most:
            msg = f"the text does not fit into the context of {self.settings.ctx} tokens"
            expected, do = f"at most {most} tokens", "shorten it, or load with a larger ctx"
            got = f"{tokens} tokens"
            raise ContextFullError(msg, where=where, expected=expected, got=got, do=do)

    def piece(self, ids: list[int], past: int = 0) -> list[int]:
        """The first tokens of a prompt that has `past` before: as many as one step takes."""
        n = min(self.longest_piece, len(ids))
        padded = past + min((b for b in self.buckets if b >= n), default=n)
        # padding tokens would change recurrent state, or lie beyond the longest context
        if self.buckets and (self.cache.slots or padded > max(self.lengths, default=padded)):
            n = max((b for b in self.buckets if b <= n), default=1)
        return ids[:n]

    def step(
        self, batch: Batch, rows: int, *, hidden: bool = False, whole: bool = False
    ) -> np.ndarray:
        """One step: as many tokens for each sequence, logits (rows, n_vocab) of the last ones.

        With `hidden`, hidden states (rows, n_embd). Of `whole` texts, the longest first,
        nothing is kept. `rows` is the number of sequences, or that of all tokens. A failure
        changes nothing.
        """
        t = len(batch[0][1])
        longest = max(len(s) for s, _ in batch) + t
        adapted = any(sequence.adapters for sequence, _ in batch)
        shape = self.padded(StepShape(t, len(batch), longest, rows, adapted, hidden, whole))
        plan = self.plan(shape)
        taken: list[Taken] = []
        try:
            for sequence, ids in batch:
                if whole:
                    places = Taken(np.zeros(len(ids), np.int32), 0)
                else:
                    places = self.cache.begin(sequence, len(ids))
                taken.append(places)
            columns = self.adapters.columns
            feed = Feed(shape, batch, taken, not self.encodes, columns)
            logits = plan.run(feed.arrays(plan.names), self.stop)[0]
        except BaseException:
            for places in taken:
                self.cache.abort(places)
            raise
        for (sequence, ids), places in zip(batch, taken, strict=True):
            self.cache.commit(sequence, ids, places)
        return logits[:rows]

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
        tokens = [*sequence.tokens[:keep], *sequence.tokens[keep + dropped :]]
        try:
            if self._turn(sequence.cells[keep + dropped :], -dropped):
                self.cache.drop_span(sequence, keep, keep + dropped)
                sequence.shifts += 1
            else:
                left = self.cache.rewind(sequence, keep)
                self.forward(sequence, tokens[left:])
        except BaseException:
            self.cache.rewind(sequence, keep)
            raise
        return dropped

    def _turn(self, cells: np.ndarray, turns: int) -> bool:
        """Turns the keys of these cells by so many positions, if that can be done in place."""
        caches = sum(name.startswith("k_cache") for name in self.states.tensors)
        can = not self.cache.slots and len(self.cache_ropes) == caches
        if not can or self.cache.cells.shared(cells):
            return False
        plan = self.make(shift_graph(self.cache_ropes, self.definition.ops, len(cells)))
        given = {"cells": cells, "turns": np.full_like(cells, turns)}
        try:
            plan.run(given, self.stop)
        finally:
            plan.forget()
        return True


def _bucket(n: int, buckets: Sequence[int], what: str) -> int:
    fits = [b for b in buckets if b >= n]
    if not fits:
        msg = f"the device cannot take so many {what}"
        raise DeviceError(msg, expected=f"at most {max(buckets)}", got=n, do="lower ctx")
    return min(fits)
