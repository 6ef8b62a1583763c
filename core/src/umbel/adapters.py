"""LoRA adapters: y = W x + sum over slots of m_s * B_s (A_s x), arXiv 2106.09685.

A file is a GGUF of `general.type` "adapter": for an adapted weight `T` it holds `T.lora_a`
(rank, in) and `T.lora_b` (out, rank), and the metadata `adapter.lora.alpha`: the product counts
alpha / rank times.

All adapters of a model lie in memory that is made at load: for each adapted layer one matrix A
(slots * rank, in) and one B (out, slots * rank), and a slot is the columns of one adapter. So
adapters come and go without a new plan, and each row of a batch has adapters of its own: the
input `adapters` (N, slots * rank) says how much each column counts for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from umbel import gguf
from umbel.errors import ModelFormatError, OptionError
from umbel.gguf.types import F16, dequantise
from umbel.graph import Shape
from umbel.models import ModelDefinition, StateShape, StepShape
from umbel.models.builder import LORA, AdapterShape
from umbel.plan import States
from umbel.state import Mix

# Names (at load: paths), perhaps with scales.
Wanted = str | os.PathLike[str] | Sequence[str] | Mapping[str, float] | None
# No factor and no scale that was trained or meant. What overflows would be NaN, and not only in
# rows that use the adapter: a row that does not counts the same columns zero times.
LARGEST = 1e6


@attrs.frozen(eq=False)
class Adapter:
    """A low-rank change of some weights, as the file gives it."""

    name: str
    rank: int  # the largest
    factors: Mapping[str, tuple[np.ndarray, np.ndarray]]  # stem -> A (r, in), B (out, r)
    digest: str  # of the values: what names an adapter in saved sessions


def read_all(definition: ModelDefinition, given: Wanted) -> dict[Adapter, float]:
    """The adapters of these files, with their scales."""
    scales = _scales(given)
    made = {read(path, definition): scale for path, scale in scales.items()}
    names = [adapter.name for adapter in made]
    for name in names:
        if names.count(name) > 1:
            msg = f"{names.count(name)} adapters would be called {name!r}"
            do = "rename one, or load it later by a name"
            raise OptionError(msg, where="adapters", do=do)
    return made


def read(path: str | os.PathLike[str], definition: ModelDefinition) -> Adapter:
    """The adapter of a file.

    Raises `ModelFormatError` where the file is damaged, or not for this model.
    """
    shapes = linears(definition)
    with gguf.open(path) as file:
        _expect(file, "general.type", "adapter")
        _expect(file, "adapter.type", "lora")
        _expect(file, "general.architecture", definition.architecture.name)
        alpha = file.get("adapter.lora.alpha", float, 0.0)
        if "adapter.lora.alpha" in file.metadata and not 0 < alpha <= LARGEST:
            msg = "the adapter's alpha would make it nothing, or nonsense"
            expected = f"above 0, and {LARGEST:g} at most"
            raise ModelFormatError(msg, where=file.path, expected=expected, got=alpha)
        pairs: dict[str, dict[str, np.ndarray]] = {}
        for name, info in file.tensors.items():
            stem, _, half = name.rpartition(".weight.lora_")
            if stem not in shapes or half not in ("a", "b"):
                msg = f"the tensor {name!r} is none that can adapt this model"
                expected = "lora_a and lora_b of the weights of its linear layers"
                raise ModelFormatError(msg, where=file.path, expected=expected)
            pairs.setdefault(stem, {})[half] = dequantise(file.array(name), info.dtype)
        if not pairs:
            msg = "the adapter has no tensors"
            raise ModelFormatError(msg, where=file.path)
        factors = {s: _factors(pair, s, shapes[s], alpha, file) for s, pair in pairs.items()}
    digest = hashlib.sha256()
    for stem in sorted(factors):
        digest.update(stem.encode() + b"".join(half.tobytes() for half in factors[stem]))
    rank = max(len(a) for a, _ in factors.values())
    return Adapter(file.path.stem, rank, factors, digest.hexdigest()[:32])


def _expect(file: gguf.GGUFFile, key: str, expected: str) -> None:
    got = file.metadata.get(key)
    if got != expected:
        msg = "the file is no LoRA adapter for this model"
        raise ModelFormatError(msg, where=file.path, expected=f"{key} {expected!r}", got=got)


def _factors(
    pair: Mapping[str, np.ndarray], stem: str, shape: Shape, alpha: float, file: gguf.GGUFFile
) -> tuple[np.ndarray, np.ndarray]:
    """A and B of one layer (out, in), with alpha / rank in B."""
    n_out, n_in = shape
    a, b = (pair.get(half, np.empty(0, np.float32)) for half in "ab")
    rank = len(a) if a.shape else 0
    for half, got, expected in (("a", a, (rank, n_in)), ("b", b, (n_out, rank))):
        name = f"{stem}.weight.lora_{half}"
        if got.shape != expected or not rank:
            msg = f"the tensor {name!r} is {'of another shape' if half in pair else 'missing'}"
            shown = list(got.shape) if half in pair else None
            want = list(expected) if rank else "a rank above 0"
            raise ModelFormatError(msg, where=file.path, expected=want, got=shown)
        if not np.abs(got).max() <= LARGEST:  # or it is NaN
            msg = f"the tensor {name!r} has values that are not finite, or far too large"
            raise ModelFormatError(msg, where=file.path)
    return np.array(a), b * np.float32(alpha / rank if alpha else 1)  # a file can change


def linears(definition: ModelDefinition) -> Mapping[str, Shape]:
    """The layers that adapters can change, with their shapes (out, in)."""
    return definition.graph(StepShape(1, 1, 1, 1), StateShape(1, 1)).linears


def room(
    definition: ModelDefinition, adapters: Collection[Adapter], slots: int, rank: int
) -> AdapterShape:
    """Memory for these adapters, or for as many and as large ones as were asked for.

    They may adapt the layers that those given at load adapt; without any, all.
    """
    slots = max(slots, len(adapters))
    rank = max((rank, *(adapter.rank for adapter in adapters)))
    if not slots:
        return AdapterShape()
    if not rank:
        msg = "nothing says how large the adapters of the slots may be"
        raise OptionError(msg, where="adapter_rank", expected="1 or more", got=rank)
    stems = {stem for adapter in adapters for stem in adapter.factors}
    return AdapterShape(slots, rank, frozenset(stems or linears(definition)))


def _scales(wanted: Wanted) -> Mapping[str, float]:
    """Names with their scales, 1 where none is told."""
    given: Any = () if wanted is None else wanted
    names = given if isinstance(given, Collection) and not isinstance(given, str) else [given]
    scales = names if isinstance(names, Mapping) else dict.fromkeys(map(str, names), 1.0)
    for name, scale in scales.items():
        number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not number or not abs(scale) <= LARGEST:
            msg = f"the scale of the adapter {str(name)!r} cannot be used"
            expected = f"a number from -{LARGEST:g} to {LARGEST:g}"
            raise OptionError(msg, where="adapters", expected=expected, got=f"{scale!r:.80}")
    return scales


class Adapters:
    """The adapters of one model in their slots. The engine's thread changes them."""

    def __init__(self, shape: AdapterShape, states: States) -> None:
        self.shape = shape
        self._states = states
        self._slots: list[Adapter | None] = [None] * shape.slots

    @property
    def names(self) -> list[str]:
        return [adapter.name for adapter in self._slots if adapter]

    def put(self, adapter: Adapter) -> None:
        """Takes a slot, that of the adapter of the same name if there is one."""
        self._check(adapter)
        names = [held and held.name for held in self._slots]
        wanted = adapter.name if adapter.name in names else None
        if wanted not in names:
            msg = "there is no slot free for another adapter"
            do = "unload one, or load the model with more adapter_slots"
            raise OptionError(msg, where=adapter.name, got=", ".join(self.names), do=do)
        self._slots[names.index(wanted)] = adapter
        try:
            self._write()
        except BaseException:  # half of it is written, in the place of what was there
            self._slots = [None] * self.shape.slots
            raise

    def remove(self, name: str) -> None:
        """Frees a slot; sequences that use it fail at their next step."""
        self.mix([name])
        self._slots = [None if held and held.name == name else held for held in self._slots]

    def mix(self, wanted: Wanted) -> Mix:
        """What a sequence that wants these adapters keeps of them; scale 0 is none."""
        scales = _scales(wanted)
        held = {adapter.name: adapter for adapter in self._slots if adapter}
        for name in scales:
            if name not in held:
                msg = "there is no such adapter"
                known = ", ".join(held) or "none: no adapter is loaded"
                raise OptionError(msg, where="adapters", expected=known, got=name)
        return tuple(sorted((held[n].digest, float(s)) for n, s in scales.items() if s))

    def columns(self, mix: Mix) -> np.ndarray:
        """(slots * rank,) float32: how much each column counts for a sequence."""
        out = np.zeros((self.shape.slots, self.shape.rank), np.float32)
        digests = [adapter and adapter.digest for adapter in self._slots]
        for digest, scale in mix:
            if digest not in digests:
                msg = "an adapter that the session uses was unloaded"
                raise OptionError(msg, do="load it again, or open another session")
            out[digests.index(digest)] += scale
        return out.reshape(-1)

    def _check(self, adapter: Adapter) -> None:
        others = adapter.factors.keys() - self.shape.stems
        if adapter.rank > self.shape.rank or others:
            msg = f"the adapter {adapter.name!r} does not fit into what was kept for adapters"
            expected = f"rank {self.shape.rank} at most, for {_few(self.shape.stems)}"
            got = f"rank {adapter.rank}, for {_few(others or adapter.factors.keys())}"
            do = "load the model with it, or with a larger adapter_rank"
            raise OptionError(msg, where="adapters", expected=expected, got=got, do=do)
        for stem, pair in adapter.factors.items():
            for half, values in zip("ab", pair, strict=True):
                self._check_range(adapter, f"{LORA}{half}.{stem}", values)

    def _check_range(self, adapter: Adapter, state: str, values: np.ndarray) -> None:
        """What would become infinite in its device's memory would spoil other slots, too."""
        kind = self._states.tensors[state].dtype
        largest, most = float(np.abs(values).max(initial=0)), float(np.finfo(np.float16).max)
        if kind is F16 and largest > most:
            msg = f"the adapter {adapter.name!r} has a value that its device cannot hold"
            expected = f"at most {most:g}, as {kind}"
            do = "take another device, or an adapter whose factors are balanced"
            raise OptionError(msg, where=state, expected=expected, got=f"{largest:g}", do=do)

    def _write(self) -> None:
        """Puts the matrices of all layers together anew."""
        slots, rank = self.shape.slots, self.shape.rank
        for stem in self.shape.stems:
            names = [f"{LORA}{half}.{stem}" for half in "ab"]
            (_, n_in), (n_out, _) = (self._states.tensors[name].shape for name in names)
            a = np.zeros((slots, rank, n_in), np.float32)
            b = np.zeros((n_out, slots, rank), np.float32)
            for slot, adapter in enumerate(self._slots):
                if adapter and stem in adapter.factors:
                    down, up = adapter.factors[stem]
                    a[slot, : len(down)], b[:, slot, : len(down)] = down, up
            for name, values in zip(names, (a, b), strict=True):
                self._states.write(name, values)


def _few(stems: Iterable[str]) -> str:
    """The kinds of layers: `attn_q, ffn_up`."""
    return ", ".join(sorted({stem.rpartition(".")[2] for stem in stems}))
