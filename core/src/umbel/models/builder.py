"""The builder that architectures write their graphs with: weights, inputs and state by name.

A step computes `tokens` new tokens for each of `sequences` sequences; N = sequences * tokens
rows go through the layers. All inputs are int32 or float32 and are filled by the engine before
the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from umbel.errors import ModelFormatError
from umbel.gguf import TensorInfo
from umbel.gguf.types import F32, I32, DType
from umbel.graph import Builder, Operation, Role, Tensor
from umbel.models.hparams import Hparams, Rope


@attrs.frozen
class StepShape:
    """What a plan is made for."""

    tokens: int  # new tokens of each sequence
    sequences: int
    kv_length: int  # cells that each sequence may attend to
    rows: int  # rows whose logits are asked for

    @property
    def n(self) -> int:
        return self.tokens * self.sequences


@attrs.frozen
class StateShape:
    """How much state there is room for."""

    cells: int  # rows of each KV cache; cell 0 is scratch
    slots: int  # recurrent states; slot 0 is scratch
    kv_dtype: DType = F32
    n_ctx: int = 0  # the longest sequence that was asked for; 0 = as long as trained


@attrs.frozen
class CacheRope:
    """What turns the keys of one cache, so that a shift can turn them further."""

    cache: Tensor
    rope: Rope
    factors: Tensor | None
    heads: int


class ModelBuilder(Builder):
    """A `Builder` that knows one file's tensors and one step's shape."""

    def __init__(
        self,
        ops: Mapping[str, Operation],
        tensors: Mapping[str, TensorInfo],
        hparams: Hparams,
        step: StepShape,
        state: StateShape,
        where: str = "",
    ) -> None:
        super().__init__(ops)
        self.tensors = tensors
        self.hparams = hparams
        self.step = step
        self.state = state
        self.where = where
        self.effects: list[Tensor] = []  # writes to state, outputs of the graph
        self.cache_ropes: list[CacheRope] = []

    # weights

    def weight(self, stem: str, shape: tuple[int, ...], suffix: str = ".weight") -> Tensor:
        """The tensor `stem.weight` of the file, which must have this shape."""
        name = stem + suffix
        info = self.tensors.get(name)
        if info is None or info.shape != shape:
            msg = f"tensor {name!r} is {'missing' if info is None else 'of another shape'}"
            got = None if info is None else list(info.shape)
            raise ModelFormatError(msg, where=self.where, expected=list(shape), got=got)
        return self.leaf(Role.WEIGHT, name, info.shape, info.dtype)

    def maybe(
        self, stem: str, shape: tuple[int, ...], suffix: str = ".weight"
    ) -> Tensor | None:
        """The same, or None when the file has no such tensor."""
        return self.weight(stem, shape, suffix) if stem + suffix in self.tensors else None

    def linear(self, x: Tensor, stem: str, n_out: int) -> Tensor:
        """x W^T, plus the bias when the file has one: (n, in) -> (n, n_out)."""
        y = self.mul_mat(self.weight(stem, (n_out, x.shape[-1])), x, name=stem)
        bias = self.maybe(stem, (n_out,), ".bias")
        return y if bias is None else self.add(y, bias)

    def norm_rms(self, x: Tensor, stem: str) -> Tensor:
        """rms_norm over the last axis with the file's weight."""
        return self.rms_norm(x, self.weight(stem, x.shape[-1:]), eps=self.hparams.eps)

    def norm_layer(self, x: Tensor, stem: str) -> Tensor:
        """LayerNorm over the last axis with the file's weight and bias."""
        n = x.shape[-1:]
        return self.norm(
            x, self.weight(stem, n), self.maybe(stem, n, ".bias"), eps=self.hparams.eps
        )

    # the inputs of a step

    def _input(self, name: str, *shape: int, dtype: DType = I32) -> Tensor:
        return self.leaf(Role.INPUT, name, shape, dtype)

    @property
    def token_ids(self) -> Tensor:
        return self._input("tokens", self.step.n)

    @property
    def positions(self) -> Tensor:
        return self._input("positions", self.step.n)

    @property
    def cells(self) -> Tensor:
        """The cell that each new token's key and value go to."""
        return self._input("cells", self.step.n)

    @property
    def table(self) -> Tensor:
        """The cells of each sequence; the last `tokens` are the step's own. Padding is cell
        0."""
        return self._input("table", self.step.sequences, self.step.kv_length)

    def mask(self, window: int = 0) -> Tensor:
        """(sequences, 1, tokens, kv_length): 0 where a token may look, else MASKED.

        With a window, what lies `window` or more positions back is hidden too.
        """
        name = f"mask:{window}" if window else "mask"
        s = self.step
        return self._input(name, s.sequences, 1, s.tokens, s.kv_length, dtype=F32)

    @property
    def state_in(self) -> Tensor:
        """The slot that each sequence's recurrent state is read from."""
        return self._input("state_in", self.step.sequences)

    @property
    def state_out(self) -> Tensor:
        """The slot that it is written to; never the one it is read from."""
        return self._input("state_out", self.step.sequences)

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
        factors: Tensor | None = None,
        sinks: Tensor | None = None,
        logit_softcap: float = 0.0,
    ) -> Tensor:
        """Causal attention over the cache: q (N, H, hd), k (N, Hkv, hd), v (N, Hkv, hv) -> (N,
        H*hv).

        `rope` and `factors` say how `k` was turned (None: not at all).
        """
        s, t = self.step.sequences, self.step.tokens
        heads, cells, dtype = k.shape[1], self.state.cells, self.state.kv_dtype
        k_cache = self.leaf(Role.STATE, f"k_cache.{layer}", (cells, heads * k.shape[2]), dtype)
        v_cache = self.leaf(Role.STATE, f"v_cache.{layer}", (cells, heads * v.shape[2]), dtype)
        if rope is not None:
            self.cache_ropes.append(CacheRope(k_cache, rope, factors, heads))
        return self.kv_attention(
            self.reshape(q, shape=(s, t, *q.shape[1:])),
            self.reshape(k, shape=(s, t, *k.shape[1:])),
            self.reshape(v, shape=(s, t, *v.shape[1:])),
            k_cache,
            v_cache,
            self.cells,
            self.table,
            self.mask(window),
            sinks,
            scale=scale,
            logit_softcap=logit_softcap,
            name=f"attention.{layer}",
        )

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Attention among the step's own tokens, no cache: (N, H, hd) each -> (N, H*hd).

        The step's `kv_length` is its `tokens`; the mask hides padding and other sequences.
        """
        s, t = self.step.sequences, self.step.tokens
        q, k, v = (
            self.permute(self.reshape(x, shape=(s, t, *x.shape[1:])), axes=(0, 2, 1, 3))
            for x in (q, k, v)
        )
        y = self.flash_attn_ext(q, k, v, self.mask(), scale=scale)  # (s, t, H, hd)
        return self.reshape(y, shape=(s * t, y.shape[2] * y.shape[3]))

    def recurrent(self, name: str, size: int) -> Tensor:
        """The recurrent states of all slots: (slots, size) float32."""
        return self.leaf(Role.STATE, name, (self.state.slots, size), F32)

    def write_state(self, state: Tensor, new: Tensor) -> None:
        """The step's new states (sequences, size) go to `state_out`."""
        self.effects.append(self.set_rows(state, new, self.state_out))

    # the ends of the graph

    def embed(self) -> Tensor:
        """The embeddings of the step's tokens: (N, n_embd)."""
        hp = self.hparams
        return self.get_rows(self.weight("token_embd", (hp.n_vocab, hp.n_embd)), self.token_ids)

    def embed_positions(self) -> Tensor:
        """The learned embeddings of the step's positions: (N, n_embd)."""
        hp = self.hparams
        table = self.weight("position_embd", (hp.n_ctx_train, hp.n_embd))
        return self.get_rows(table, self.positions)

    def asked(self, x: Tensor) -> Tensor:
        """The rows whose logits are wanted: (N, n_embd) -> (rows, n_embd)."""
        return self.get_rows(x, self._input("out_ids", self.step.rows))

    def logits(self, x: Tensor) -> Tensor:
        """The output head, tied to the embedding when the file has none of its own."""
        hp = self.hparams
        stem = "output" if "output.weight" in self.tensors else "token_embd"
        return self.linear(x, stem, hp.n_vocab)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap); a cap of 0 is none."""
        return self.scale(self.tanh(self.scale(x, s=1.0 / cap)), s=cap) if cap else x
