"""Which tensors of a folder become which of the file, and what is done to their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.tools.convert.folder import Config, Folder
from umbel.tools.convert.names import Table

Shape = tuple[int, ...]

# Small, or read value by value: kept in float32 whatever the type of the file.
PRECISE = r"position_embd|token_types|.*(ssm_(a|d|norm|conv1d)|shortconv\.conv|ffn_gate_inp)"
ENDINGS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


@attrs.frozen
class Change:
    """What becomes of the values of a tensor, and of its shape."""

    values: Callable[[np.ndarray, Config], np.ndarray]
    shape: Callable[[Shape, Config], Shape] = lambda shape, _: shape


def _interleave(key: str) -> Change:
    """Rows whose heads are turned in two halves, put so that neighbours turn together."""

    def values(w: np.ndarray, c: Config) -> np.ndarray:
        heads = c.count(key, c.count("num_attention_heads"))
        if not heads or w.shape[0] % (2 * heads):
            c.refuse(key, f"a number of heads that divides {w.shape[0]} rows", heads)
        halves = w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:])
        turned: np.ndarray = halves.swapaxes(1, 2).reshape(w.shape)
        return turned

    return Change(values)


# A shape that is not as expected stays, and is refused when the file is checked.


def _grouped(shape: Shape, c: Config) -> Shape:
    """(inner) -> (groups, inner / groups)"""
    groups = c.count("n_groups")
    fits = len(shape) == 1 and groups and shape[0] % groups == 0
    return (groups, shape[0] // groups) if fits else shape


def _kernel(shape: Shape, _: Config) -> Shape:
    """(channels, 1, width) -> (channels, width)"""
    return (shape[0], shape[2]) if len(shape) == 3 and shape[1] == 1 else shape


def _reshaped(shape: Callable[[Shape, Config], Shape]) -> Change:
    return Change(lambda w, c: w.reshape(shape(w.shape, c)), shape)


COLUMN = _reshaped(lambda shape, _: (*shape, 1))
KERNEL = _reshaped(_kernel)
GROUPED = _reshaped(_grouped)
TRANSPOSED = Change(lambda w, _: w.T, lambda shape, _: shape[::-1])  # GPT-2's Conv1D
ONE_MORE = Change(lambda w, _: np.float32(w) + 1)  # Gemma keeps a norm's weight less one
DECAY = Change(lambda w, _: -np.exp(np.float32(w)))
DECAYS = Change(lambda w, _: -np.exp(np.float32(w))[..., None], COLUMN.shape)

# By the name in the file, without its layer.
Changes = Mapping[str, Change]
LLAMA: Changes = {
    r"attn_q\..*": _interleave("num_attention_heads"),
    r"attn_k\..*": _interleave("num_key_value_heads"),
}
GEMMA3: Changes = {r".*norm\.weight": ONE_MORE}
GPT2: Changes = {r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight": TRANSPOSED}
MAMBA: Changes = {"ssm_a": DECAY, r"ssm_conv1d\.weight": KERNEL}
MAMBA2: Changes = {**MAMBA, "ssm_a": DECAYS, "ssm_d": COLUMN, r"ssm_norm\.weight": GROUPED}
LFM2: Changes = {r"shortconv\.conv\.weight": KERNEL}


@attrs.frozen
class Output:
    """A tensor of the file to be: one of the folder, or those of all experts joined."""

    name: str
    sources: tuple[str, ...]
    shape: Shape
    stacked: bool
    change: Change | None

    @property
    def precise(self) -> bool:
        stem = self.name.removesuffix(".weight")
        return len(self.shape) < 2 or re.fullmatch(PRECISE, stem) is not None

    def values(self, folder: Folder) -> np.ndarray:
        """The values, read now; calculated ones in float32."""
        parts = [folder.array(source) for source in self.sources]
        whole = np.stack(parts) if self.stacked else parts[0]
        return whole if self.change is None else self.change.values(whole, folder.config)


def outputs(
    folder: Folder, table: Table, changes: Changes, ignored: str, prefix: str
) -> list[Output]:
    """All that the file will hold; a tensor that has no place in it is refused."""
    experts: dict[str, dict[int, str]] = {}
    unknown = []
    for source in folder.tensors:
        name = source.removeprefix(prefix)
        if re.fullmatch(ignored, name):
            continue
        ours, expert = _renamed(name, table)
        if not ours:
            unknown.append(source)
        elif expert in experts.setdefault(ours, {}):
            unknown.append(source)  # the same once with the prefix and once without it
        else:
            experts[ours][expert] = source
    if unknown:
        msg = "the folder has tensors whose place in the model is not known"
        got = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if unknown[4:] else "")
        raise UnsupportedModelError(msg, where=folder.path, got=got)
    return [_output(folder, name, found, changes) for name, found in experts.items()]


def _renamed(name: str, table: Table) -> tuple[str, int]:
    """Its name in the file and the number of its expert; "" where the table has none."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", f".{name}")
    layer, expert = (*numbers, "", "")[:2]
    pattern = name
    for number, mark in zip(numbers, "#*", strict=False):
        pattern = re.sub(rf"(^|\.){number}\.", rf"\g<1>{mark}.", pattern, count=1)
    stem, _, ending = pattern.rpartition(".")
    ours = table.get(pattern, "")
    if not ours and stem in table and ending in ENDINGS:
        ours = f"{table[stem]}.{ENDINGS[ending]}"
    return ours.replace("#", layer), int(expert or -1)


def _output(folder: Folder, name: str, found: Mapping[int, str], changes: Changes) -> Output:
    sources = tuple(found[i] for i in sorted(found))
    shapes = {folder.shape(source) for source in sources}
    for source in sources:
        folder.dtype(source)  # which refuses what cannot be read
    stacked = -1 not in found
    if stacked and sorted(found) != list(range(len(found))):
        msg, got = f"of the experts of {name!r} some are missing", sorted(found)
        raise ModelFormatError(msg, where=folder.path, expected="0, 1, 2 ...", got=got)
    if len(shapes) > 1:
        msg = f"the tensors of {name!r} are of different shapes"
        raise ModelFormatError(msg, where=folder.path, got=sorted(shapes))
    (shape,) = shapes
    if stacked:
        shape = (len(found), *shape)
    short = re.sub(r"^blk\.\d+\.", "", name)
    change = next((ch for key, ch in changes.items() if re.fullmatch(key, short)), None)
    if change is not None:
        shape = change.shape(shape, folder.config)
    return Output(name, sources, shape, stacked, change)
