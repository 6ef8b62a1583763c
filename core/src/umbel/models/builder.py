"""What architectures write their graphs with: weights, inputs and state by name.

A step computes `tokens` new tokens for each of `sequences` sequences; N = sequences * tokens
rows go through the layers. All inputs are int32 or float32 and are filled by the engine before
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NamedTuple

import attrs

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf import GGUFFile
from umbel.gguf.types import F32, I32, DType
from umbel.graph import Builder, Graph, Operation, Role, Shape, Tensor
from umbel.models.hparams import Hparams, Meta, Rope, read_hparams


@attrs.frozen
class Architecture:
    """A name from `general.architecture` and the function that writes the graph."""

    name: str
    build: Callable[[ModelBuilder], Tensor]
    pooled: bool = False  # the result is hidden states (all rows), not logits


class StepShape(NamedTuple):  # whose hash costs a step little: it looks for its plan
    """What a plan is made for."""

    tokens: int  # new tokens of each sequence
    sequences: int
    kv_length: int  # cells that each sequence may attend to
    rows: int  # rows whose logits are asked for
    adapted: bool = False  # some sequence of it uses adapters
    hidden: bool = False  # what the output head would read is asked for in their place
    whole: bool = False  # these are whole texts: attention needs no state

    @property
    def n(self) -> int:
        return self.tokens * self.sequences


LORA = "lora_"  # how the names of the adapters' memory begin


@attrs.frozen
class AdapterShape:
    """Room for so many LoRA adapters of so high a rank, for some of the linear layers."""

    slots: int = 0
    rank: int = 0
    stems: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        return self.slots * self.rank


@attrs.frozen
class StateShape:
    """How much state there is room for."""

    cells: int  # rows of each KV cache; cell 0 is scratch
    slots: int  # recurrent states; slot 0 is scratch
    n_ctx: int = 0  # the longest sequence that was asked for; 0 = as long as trained
    adapters: AdapterShape = AdapterShape()
    # how a state is kept that operations see as float32
    kept: Callable[[Tensor], DType] = attrgetter("dtype")


@attrs.frozen
class CacheRope:
    """What turns the keys of one cache, so that a shift can turn them further."""

    cache: Tensor
    rope: Rope
    factors: Tensor | None
    heads: int


@attrs.frozen(eq=False)
class ModelGraph:
    """The graph of one step; its first output is logits (rows, n_vocab) or hidden states
    (rows, n_embd), of an encoder (N, n_embd), the others are writes to state."""

    graph: Graph
    cache_ropes: tuple[CacheRope, ...]
    linears: Mapping[str, Shape]  # stem -> (out, in) of each layer that can be adapted


@attrs.frozen(eq=False)
class ModelDefinition:
    """A file whose architecture is known: makes graphs for steps of any shape."""

    file: GGUFFile
    architecture: Architecture
    ops: Mapping[str, Operation]
    hparams: Hparams = attrs.field(init=False)

    @hparams.default
    def _read(self) -> Hparams:
        meta, causal = Meta(self.file), not self.architecture.pooled
        stated = meta.get("attention.causal", bool, causal)
        if stated is not causal:
            msg = f"this {meta.arch} is of a kind that is not supported"
            where, expected = self.file.path, f"{meta.arch}.attention.causal {causal}"
            raise UnsupportedModelError(msg, where=where, expected=expected, got=stated)
        return read_hparams(meta)

    def check_vocabulary(self, n: int) -> None:
        """Every token has its row in the embedding, and every row is a token."""
        if n != self.hparams.n_vocab:
            msg = "the vocabulary and the token embedding are of different sizes"
            got = self.hparams.n_vocab
            raise ModelFormatError(msg, where=self.file.path, expected=n, got=got)

    def graph(self, step: StepShape, state: StateShape) -> ModelGraph:
        """The graph of one step; missing or misshapen tensors are a `ModelFormatError`."""
        builder = ModelBuilder(self, step, state)
        result: Tensor | None = self.architecture.build(builder)
        if step.hidden:
            result = builder.hidden
        if result is None:
            msg = f"the architecture {self.architecture.name!r} gives no hidden states"
            raise UnsupportedModelError(msg, where=self.file.path)
        graph = builder.graph([result, *builder.effects])
        return ModelGraph(graph, tuple(builder.cache_ropes), builder.linears)


class ModelBuilder(Builder):
    """A `Builder` that knows one file's tensors and one step's shape."""

    def __init__(self, model: ModelDefinition, step: StepShape, state: StateShape) -> None:
        super().__init__(model.ops)
        self.file = model.file
        self.hparams = model.hparams
        self.step = step
        self.state = state
        self.effects: list[Tensor] = []  # writes to state, outputs of the graph
        self.cache_ropes: list[CacheRope] = []
        self.linears: dict[str, Shape] = {}
        self.hidden: Tensor | None = None  # what the output head reads

    # weights

    def weight(self, stem: str, shape: Shape, suffix: str = ".weight") -> Tensor:
        """The tensor `stem.weight` of the file, which must have this shape."""
        name = stem + suffix
        info = self.file.tensors.get(name)
        if info is None or info.shape != shape:
            msg = f"tensor {name!r} is {'missing' if info is None else 'of another shape'}"
            got = None if info is None else list(info.shape)
            raise ModelFormatError(msg, where=self.file.path, expected=list(shape), got=got)
        return self.leaf(Role.WEIGHT, name, info.shape, info.dtype)

    def maybe(self, stem: str, shape: Shape, suffix: str = ".weight") -> Tensor | None:
        """The same, or None when the file has no such tensor."""
        return self.weight(stem, shape, suffix) if stem + suffix in self.file.tensors else None

    def linear(self, x: Tensor, stem: str, n_out: int) -> Tensor:
        """x W^T, plus the bias when the file has one: (n, in) -> (n, n_out)."""
        shape = (n_out, x.shape[-1])
        y = self.mul_mat(self.weight(stem, shape), x, name=stem)
        if stem != "token_embd":  # an adapter of a tied head would have to turn both its uses
            self.linears[stem] = shape
            if self.step.adapted and stem in self.state.adapters.stems:
                y = self.add(y, self._adapted(x, stem, n_out))
        bias = self.maybe(stem, (n_out,), ".bias")
        return y if bias is None else self.add(y, bias)

    def _adapted(self, x: Tensor, stem: str, n_out: int) -> Tensor:
        """What the adapters add: (n, in) -> (n, n_out), each row with adapters of its own."""
        width = self.state.adapters.width
        a = self.kept(f"{LORA}a.{stem}", width, x.shape[-1])
        b = self.kept(f"{LORA}b.{stem}", n_out, width)
        counts = self.leaf(Role.INPUT, "adapters", (self.step.n, width), F32)
        if x.shape[0] != self.step.n:
            counts = self.asked(counts)
        return self.mul_mat(b, self.mul(self.mul_mat(a, x), counts))

    def norm_rms(self, x: Tensor, stem: str) -> Tensor:
        """rms_norm over the last axis with the file's weight."""
        return self.rms_norm(x, self.weight(stem, x.shape[-1:]), eps=self.hparams.eps)

    def norm_layer(self, x: Tensor, stem: str) -> Tensor:
        """LayerNorm over the last axis with the file's weight and bias."""
        n = x.shape[-1:]
        weight, bias = self.weight(stem, n), self.maybe(stem, n, ".bias")
        return self.norm(x, weight, bias, eps=self.hparams.eps)

    # the inputs of a step

    def given(self, name: str) -> Tensor:
        """One of the integer inputs."""
        step = self.step
        shapes = {
            "tokens": (step.n,),
            "positions": (step.n,),
            "cells": (step.n,),  # where the key and value of each new token go to
            # the cells of each sequence: the last `tokens` are of this step, padding is cell 0
            "table": (step.sequences, step.kv_length),
            "state_in": (step.sequences,),  # the slot that recurrent state is read from
            "state_out": (step.sequences,),  # the one it is written to, never the same
            "out_ids": (step.rows,),  # the rows whose logits are wanted
        }
        return self.leaf(Role.INPUT, name, shapes[name], I32)

    def mask(self, window: int = 0) -> Tensor:
        """(sequences, 1, tokens, kv_length): 0 where a token may look, else MASKED.

        With a window, what lies `window` or more positions back is hidden too.
        """
        name, s = f"mask:{window}" if window else "mask", self.step
        return self.leaf(Role.INPUT, name, (s.sequences, 1, s.tokens, s.kv_length), F32)

    def sequences(self, x: Tensor) -> Tensor:
        """(N, ...) -> (sequences, tokens, ...)"""
        return self.reshape(x, shape=(self.step.sequences, self.step.tokens, *x.shape[1:]))

    # state

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        window: int = 0,
        rope: Rope | None = None,
    ) -> Tensor:
        """Causal attention over the cache, of whole texts among themselves: q (N, H, hd),
        k (N, Hkv, hd), v (N, Hkv, hv).

        `rope` turns q and k by their positions (None: not at all). The result is (N, H*hv).
        """
        heads, cells, factors = k.shape[1], self.state.cells, None
        if rope is not None:
            how, factors = attrs.asdict(rope), self.rope_factors(rope)
            q, k = (self.rope(x, self.given("positions"), factors, **how) for x in (q, k))
        if self.step.whole:
            return self.attend_within(q, k, v, scale=scale, window=window)
        k_cache = self.kept(f"k_cache.{layer}", cells, heads * k.shape[2])
        v_cache = self.kept(f"v_cache.{layer}", cells, heads * v.shape[2])
        if rope is not None:
            self.cache_ropes.append(CacheRope(k_cache, rope, factors, heads))
        q, k, v = map(self.sequences, (q, k, v))
        state = (k_cache, v_cache, self.given("cells"), self.given("table"), self.mask(window))
        return self.kv_attention(q, k, v, *state, scale=scale, name=f"attention.{layer}")

    def rope_factors(self, rope: Rope) -> Tensor | None:
        """What divides each frequency, when the file has such a tensor; never in a window.

        Of the two sets of a LongRoPE model (arXiv 2402.13753) the long one serves whoever asked
        for a longer context than the model was first trained with, from its first token on:
        keys that were turned by different factors do not go together.
        """
        longest = self.state.n_ctx or self.hparams.n_ctx_train
        length = "long" if longest > rope.n_ctx_orig else "short"
        names = (f"rope_factors_{length}", "rope_freqs") if rope.n_ctx_orig else ()
        return next(filter(None, (self.maybe(n, (rope.n_dims // 2,)) for n in names)), None)

    def attend_within(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int = 0
    ) -> Tensor:
        """Attention among the step's own tokens, no cache: (N, H, hd) each -> (N, H*hd).

        The step's `kv_length` is its `tokens`; the mask hides padding and other sequences.
        """
        q, k, v = (self.permute(self.sequences(x), axes=(0, 2, 1, 3)) for x in (q, k, v))
        y = self.flash_attn_ext(q, k, v, self.mask(window), scale=scale)  # (s, t, H, hd)
        return self.reshape(y, shape=(self.step.n, y.shape[2] * y.shape[3]))

    def recurrent(self, name: str, size: int) -> Tensor:
        """The recurrent states of all slots: (slots, size)."""
        return self.kept(name, self.state.slots, size)

    def kept(self, name: str, rows: int, size: int) -> Tensor:
        """A state: so many rows of so many values."""
        state = Tensor((rows, size), F32, Role.STATE, name)
        return self.leaf(Role.STATE, name, state.shape, self.state.kept(state))

    def write_state(self, state: Tensor, new: Tensor) -> None:
        """The step's new states, those of a sequence after the other, go to `state_out`."""
        rows = self.reshape(new, shape=(self.step.sequences, state.shape[1]))
        self.effects.append(self.set_rows(state, rows, self.given("state_out")))

    # the ends of the graph

    def embed(self) -> Tensor:
        """The embeddings of the step's tokens: (N, n_embd)."""
        return self.lookup("token_embd", self.hparams.n_vocab, self.given("tokens"))

    def embed_positions(self) -> Tensor:
        """The learned embeddings of the step's positions: (N, n_embd)."""
        return self.lookup("position_embd", self.hparams.n_ctx_train, self.given("positions"))

    def lookup(self, stem: str, n: int, ids: Tensor) -> Tensor:
        """Rows of a table of the file, which has n of them: (N, n_embd)."""
        return self.get_rows(self.weight(stem, (n, self.hparams.n_embd)), ids)

    def asked(self, x: Tensor) -> Tensor:
        """The rows whose logits are wanted: (N, n_embd) -> (rows, n_embd)."""
        return self.get_rows(x, self.given("out_ids"))

    def logits(self, x: Tensor) -> Tensor:
        """The output head, tied to the embedding when the file has none of its own."""
        self.hidden = x
        stem = "output" if "output.weight" in self.file.tensors else "token_embd"
        return self.linear(x, stem, self.hparams.n_vocab)
