"""The numbers that describe a model, read from GGUF metadata and checked.

Keys and defaults are those of the GGUF specification; what a key means for one architecture
only is read in that architecture's file.
"""

from __future__ import annotations

import math
from typing import NoReturn, TypeVar

import attrs

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf import GGUFFile
from umbel.ops.rope import Rope as Rope

T = TypeVar("T")


@attrs.frozen
class Hparams:
    """Sizes and constants of one model; per-layer values are tuples of `n_layer`."""

    meta: Meta  # where an architecture finds what it alone has
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    scale: float  # of the attention's scores
    eps: float
    window: int  # sliding window in tokens; 0 = none
    learned_positions: bool  # there is no position past n_ctx_train, and no shift


class Meta:
    """The metadata of a file under its architecture's prefix: `meta.count("block_count")`.

    A key without a default is required, and named in full where it is missing.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.get("general.architecture", str)

    def get(self, key: str, kind: type[T], *default: T) -> T:
        return self.file.get(f"{self.arch}.{key}", kind, *default)

    def count(self, key: str, *default: int, least: int = 0) -> int:
        value = self.get(key, int, *default)
        if value < least:
            self.refuse(key, f"{least} or more", value)
        return value

    def per_layer(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A number for each layer: the file holds one for all, or an array of them."""
        value, n = self.file.metadata.get(f"{self.arch}.{key}"), len(default)
        if value is None:
            return default
        if not isinstance(value, list):
            return (self.count(key),) * n
        numbers = tuple(int(v) for v in value if isinstance(v, int))  # a bool is 0 or 1
        if not n == len(value) == len(numbers) or min(numbers, default=0) < 0:
            self.refuse(key, f"{n} numbers, one for each layer", value)
        return numbers

    def refuse(self, key: str, expected: str, got: object) -> NoReturn:
        msg = f"the metadata key {self.arch}.{key} has a value that cannot be"
        raise ModelFormatError(msg, where=self.file.path, expected=expected, got=got)


def read_hparams(meta: Meta) -> Hparams:
    """The numbers that all architectures share."""
    n_layer = meta.count("block_count", least=1)
    n_embd = meta.count("embedding_length", least=1)
    if n_layer > len(meta.file.tensors):
        meta.refuse("block_count", f"at most {len(meta.file.tensors)}, the tensors", n_layer)
    embd = meta.file.tensors.get("token_embd.weight")
    if embd is None or len(embd.shape) != 2:
        msg = "the file has no token embedding, so it is no language model"
        raise UnsupportedModelError(msg, where=meta.file.path, expected="token_embd.weight")
    none = (0,) * n_layer
    n_head = meta.per_layer("attention.head_count", none)
    head_dim = n_embd // max((1, *n_head))
    head_dim_k = meta.count("attention.key_length", head_dim)
    eps = meta.get("attention.layer_norm_epsilon", float, 1e-5)
    return Hparams(
        meta=meta,
        n_layer=n_layer,
        n_embd=n_embd,
        n_vocab=embd.shape[0],
        n_ctx_train=meta.count("context_length", 2048),
        n_head=n_head,
        n_head_kv=meta.per_layer("attention.head_count_kv", n_head),
        n_ff=meta.per_layer("feed_forward_length", none),
        head_dim_k=head_dim_k,
        head_dim_v=meta.count("attention.value_length", head_dim),
        scale=meta.get("attention.scale", float, max(1, head_dim_k) ** -0.5),
        eps=meta.get("attention.layer_norm_rms_epsilon", float, eps),
        window=meta.count("attention.sliding_window", 0),
        learned_positions="position_embd.weight" in meta.file.tensors,
    )


def read_windows(
    hparams: Hparams, wide: Rope, *, period: int, freq_base: float
) -> list[tuple[int, Rope]]:
    """The sliding window of each layer, 0 where it sees everything, and how its keys turn.

    The file says which layers have one, or after how many layers one sees everything (0: none
    does); `period` is the architecture's own. A layer without a window turns as `wide`
    says; those with one by a frequency base of their own (in the file, or `freq_base`), and are
    never scaled.
    """
    key, meta, n = "attention.sliding_window_pattern", hparams.meta, hparams.n_layer
    if isinstance(meta.file.metadata.get(f"{meta.arch}.{key}"), list):
        windowed = meta.per_layer(key, (0,) * n)
    else:
        period = meta.count(key, period)
        windowed = tuple((i + 1) % period if period else 1 for i in range(n))
    local = Rope(wide.n_dims, wide.mode, meta.get("rope.freq_base_swa", float, freq_base))
    return [(hparams.window, local) if on and hparams.window else (0, wide) for on in windowed]


def read_rope(hparams: Hparams, mode: str) -> Rope:
    """The rotary embedding with the scaling that the file asks for."""
    meta = hparams.meta
    kind = meta.get("rope.scaling.type", str, "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        msg, known = f"rope scaling {kind!r} is not known", "none, linear, yarn or longrope"
        raise UnsupportedModelError(msg, where=meta.file.path, expected=known, got=kind)
    old_factor = meta.get("rope.scale_linear", float, 0.0)  # from before rope.scaling.*
    factor = meta.get("rope.scaling.factor", float, old_factor) or 1.0
    if not 0.0 < factor < math.inf:
        meta.refuse("rope.scaling.factor", "a number above 0", factor)
    n_dims = meta.count("rope.dimension_count", hparams.head_dim_k)
    if n_dims not in range(2, hparams.head_dim_k + 1, 2):
        expected = f"an even number, at most attention.key_length ({hparams.head_dim_k})"
        meta.refuse("rope.dimension_count", expected, n_dims)
    ext_factor, attn_factor = 0.0, meta.get("rope.scaling.attn_factor", float, 1.0)
    if kind == "yarn":
        ext_factor = meta.get("rope.scaling.yarn_ext_factor", float, 1.0)
        # The file has the whole factor; the operation brings YaRN's own part of it.
        own = 1.0 + 0.1 * math.log(factor)
        attn_factor *= meta.get("rope.scaling.yarn_attn_factor", float, own) / own
    return Rope(
        n_dims=n_dims,
        mode=mode,
        freq_base=meta.get("rope.freq_base", float, 10000.0),
        freq_scale=1.0 / factor if kind in ("linear", "yarn") else 1.0,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=meta.get("rope.scaling.yarn_beta_fast", float, 32.0),
        beta_slow=meta.get("rope.scaling.yarn_beta_slow", float, 1.0),
        n_ctx_orig=meta.count("rope.scaling.original_context_length", hparams.n_ctx_train),
    )
