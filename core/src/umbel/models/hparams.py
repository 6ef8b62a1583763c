"""The numbers that describe a model, read from GGUF metadata and checked.

Keys and defaults are those of the GGUF specification; what a key means for one architecture
only is read in that architecture's file.
"""

from __future__ import annotations

import math
from typing import NoReturn, TypeAlias, TypeVar

import attrs

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf import GGUFFile

T = TypeVar("T")
# `Meta` has methods of these names, which hide the types in its signatures.
Int: TypeAlias = int
Float: TypeAlias = float
Str: TypeAlias = str
Bool: TypeAlias = bool


@attrs.frozen
class Rope:
    """How positions turn pairs of values; the fields are the attributes of the operation
    `rope`."""

    n_dims: int
    mode: str  # "norm": adjacent pairs, "neox": halves
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0  # 1 for YaRN
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0


@attrs.frozen
class Hparams:
    """Sizes and constants of one model; per-layer values are tuples of `n_layer`."""

    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    eps: float
    window: int  # sliding window in tokens; 0 = none
    causal: bool
    learned_positions: bool  # there is no position past n_ctx_train, and no shift


class Meta:
    """The metadata of a file under its architecture's prefix: `meta.int("block_count")`."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.get("general.architecture", str)

    def int(self, key: Str, default: Int | None = None, *, least: Int = 0) -> Int:
        value = self._get(key, int, default)
        if value < least:
            self.refuse(key, f"{least} or more", value)
        return value

    def float(self, key: Str, default: Float | None = None) -> Float:
        return self._get(key, float, default)

    def str(self, key: Str, default: Str | None = None) -> Str:
        return self._get(key, str, default)

    def bool(self, key: Str, default: Bool) -> Bool:
        return self._get(key, bool, default)

    def has(self, key: Str) -> Bool:
        return f"{self.arch}.{key}" in self.file.metadata

    def per_layer(self, key: Str, n: Int, default: Int | None = None) -> tuple[Int, ...]:
        """A number for each layer: the file holds one for all, or an array of them."""
        value = self.file.metadata.get(f"{self.arch}.{key}")
        if not isinstance(value, list):
            return (self.int(key, default),) * n
        numbers = tuple(int(v) for v in value if isinstance(v, int))  # a bool is 0 or 1
        if not n == len(value) == len(numbers) or min(numbers, default=0) < 0:
            self.refuse(key, f"{n} numbers, one for each layer", value)
        return numbers

    def refuse(self, key: Str, expected: Str, got: object) -> NoReturn:
        msg = f"the metadata key {self.arch}.{key} has a value that cannot be"
        raise ModelFormatError(msg, where=self.file.path, expected=expected, got=got)

    def _get(self, key: Str, kind: type[T], default: T | None) -> T:
        full = f"{self.arch}.{key}"
        if default is None:
            return self.file.get(full, kind)
        return self.file.get(full, kind, default)


def read_hparams(meta: Meta) -> Hparams:
    """The numbers that all architectures share; a missing required key is named in full."""
    n_layer, n_embd = meta.int("block_count"), meta.int("embedding_length", least=1)
    if n_layer > len(meta.file.tensors):
        meta.refuse("block_count", f"at most {len(meta.file.tensors)}, the tensors", n_layer)
    n_head = meta.per_layer("attention.head_count", n_layer, 0)
    embd = meta.file.tensors.get("token_embd.weight")
    if embd is None or len(embd.shape) != 2:
        msg = "the file has no token embedding, so it is no language model"
        raise UnsupportedModelError(msg, where=meta.file.path, expected="token_embd.weight")
    heads = max(n_head, default=0)
    head_dim = n_embd // heads if heads else 0
    n_head_kv = n_head
    if meta.has("attention.head_count_kv"):
        n_head_kv = meta.per_layer("attention.head_count_kv", n_layer)
    eps_key = "attention.layer_norm_rms_epsilon"
    if not meta.has(eps_key):
        eps_key = "attention.layer_norm_epsilon"
    return Hparams(
        arch=meta.arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_vocab=embd.shape[0],
        n_ctx_train=meta.int("context_length", 2048),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_ff=meta.per_layer("feed_forward_length", n_layer, 0),
        head_dim_k=meta.int("attention.key_length", head_dim),
        head_dim_v=meta.int("attention.value_length", head_dim),
        eps=meta.float(eps_key, 1e-5),
        window=meta.int("attention.sliding_window", 0),
        causal=meta.bool("attention.causal", True),
        learned_positions="position_embd.weight" in meta.file.tensors,
    )


def read_windows(meta: Meta, hparams: Hparams, period: int) -> tuple[int, ...]:
    """The sliding window of each layer, 0 where it sees everything.

    The file says which layers have one, or after how many layers one sees everything (0: none
    does); `period` is the architecture's own.
    """
    key = "attention.sliding_window_pattern"
    value = meta.file.metadata.get(f"{meta.arch}.{key}")
    if isinstance(value, list):
        local = tuple(bool(n) for n in meta.per_layer(key, hparams.n_layer))
    else:
        period = meta.int(key, period)
        local = tuple(not period or (i + 1) % period != 0 for i in range(hparams.n_layer))
    return tuple(hparams.window if has else 0 for has in local)


def read_rope(meta: Meta, hparams: Hparams, mode: str) -> Rope:
    """The rotary embedding with the scaling that the file asks for; an unknown one is
    refused."""
    kind = meta.str("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        msg = f"rope scaling {kind!r} is not known"
        raise UnsupportedModelError(
            msg, where=meta.file.path, expected="none, linear, yarn or longrope", got=kind
        )
    old_factor = meta.float("rope.scale_linear", 0.0)  # files from before rope.scaling.*
    factor = meta.float("rope.scaling.factor", old_factor) or 1.0
    if not 0.0 < factor < math.inf:
        meta.refuse("rope.scaling.factor", "a number above 0", factor)
    n_dims = meta.int("rope.dimension_count", hparams.head_dim_k)
    if n_dims not in range(2, hparams.head_dim_k + 1, 2):
        expected = f"an even number, at most attention.key_length ({hparams.head_dim_k})"
        meta.refuse("rope.dimension_count", expected, n_dims)
    attn_factor = meta.float("rope.scaling.attn_factor", 1.0)
    if kind == "yarn" and meta.has("rope.scaling.yarn_attn_factor"):
        # The file has the whole factor; the operation brings YaRN's own part of it.
        own = 1.0 + 0.1 * math.log(factor)
        attn_factor *= meta.float("rope.scaling.yarn_attn_factor") / own
    return Rope(
        n_dims=n_dims,
        mode=mode,
        freq_base=meta.float("rope.freq_base", 10000.0),
        freq_scale=1.0 / factor if kind in ("linear", "yarn") else 1.0,
        ext_factor=meta.float("rope.scaling.yarn_ext_factor", 1.0) if kind == "yarn" else 0.0,
        attn_factor=attn_factor,
        beta_fast=meta.float("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.float("rope.scaling.yarn_beta_slow", 1.0),
        n_ctx_orig=meta.int("rope.scaling.original_context_length", hparams.n_ctx_train),
    )
