"""The weight files of a program: what lies in them, where, and under which name.

A file is written in one pass, one weight after the other, each read when its turn comes. Its
name is a hash of its contents: the Neural Engine may know a program by its text and the paths
in it alone, so other weights must have other paths.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from umbel.errors import DeviceError

from umbel_ane.compiler.ir import FP16, INT32, Node, Weight
from umbel_ane.mil.blob import ALIGNMENT, write_blob
from umbel_ane.mil.literals import KINDS as MIL_KINDS
from umbel_ane.mil.program import Blob

METADATA = 64
KINDS: Mapping[str, type[Any]] = {FP16: np.float16, "fp32": np.float32, INT32: np.int32}


@attrs.frozen(eq=False)
class Part:
    """One entry of a weight file: a weight, or one of the two halves of a palette."""

    node: Node
    weight: Weight
    half: str = ""  # indices, lut

    @property
    def dtype(self) -> str:
        if self.half == "indices" and self.weight.palette:
            return f"uint{self.weight.palette.bits}"
        return self.node.dtype

    @property
    def count(self) -> int:
        if self.half == "lut" and self.weight.palette:
            return self.weight.palette.groups << self.weight.palette.bits
        return self.node.size


@attrs.define(eq=False)
class WeightFile:
    """One file; `read` hands its bytes over, and makes them anew when asked again."""

    parts: list[Part] = attrs.field(factory=list)
    _made: bytes | None = None

    @property
    def offsets(self) -> list[int]:
        """Where the entry of each part begins."""
        sizes = [0, *(_room(p.dtype, p.count) for p in self.parts)]
        return [ALIGNMENT + end for end in itertools.accumulate(sizes)][:-1]

    @property
    def nbytes(self) -> int:
        return ALIGNMENT + sum(_room(p.dtype, p.count) for p in self.parts)

    def read(self) -> bytes:
        made, self._made = self._made or self._make(), None
        return made

    def digest(self) -> str:
        """Of the contents, which are kept for the next `read`."""
        self._made = self._made or self._make()
        return hashlib.blake2b(self._made, digest_size=12).hexdigest()

    def _make(self) -> bytes:
        made, offsets = write_blob(self._entries())
        assert list(offsets) == self.offsets
        return made

    def _entries(self) -> Iterator[tuple[np.ndarray, str]]:
        last: tuple[Weight, tuple[np.ndarray, np.ndarray]] | None = None
        for part in self.parts:
            palette = part.weight.palette
            if part.half and palette is not None:
                if last is None or last[0] is not part.weight:
                    last = part.weight, palette.read()
                yield last[1][part.half == "lut"], part.dtype
            else:
                yield finite(part), part.dtype


def finite(part: Part) -> np.ndarray:
    """The values as they are stored; what float16 cannot hold is refused."""
    values = np.asarray(part.weight.read())
    if values.size != part.count:
        msg = "a weight has not as many values as its place in the program"
        raise DeviceError(msg, where=str(part.weight.key), expected=part.count, got=values.size)
    with np.errstate(over="ignore"):
        stored: np.ndarray = np.ascontiguousarray(values, KINDS[part.dtype])
    if stored.dtype.kind == "f" and not np.isfinite(stored).all():
        worst = float(np.nanmax(np.abs(values)))
        msg = f"a weight has values that {part.dtype} cannot hold"
        do = "take another device for this model"
        name = part.node.name or str(part.weight.key)
        raise DeviceError(msg, where=name, expected="below 65504", got=worst, do=do)
    return stored


def entries(node: Node) -> list[Part]:
    """What a constant puts into files."""
    if node.weight is None:
        return []
    if node.weight.palette is not None:
        return [Part(node, node.weight, half) for half in ("indices", "lut")]
    return [Part(node, node.weight)]


def identity(node: Node) -> Hashable:
    """The same for constants that need one entry only, whatever their shapes."""
    assert node.weight is not None
    palette = node.weight.palette
    return node.weight.key, node.dtype, palette and (palette.bits, palette.groups)


@attrs.define(eq=False)
class Files:
    """Lays out the constants of a program: in one file, or each in a file of its own."""

    one: bool
    files: Mapping[str, WeightFile] = attrs.field(factory=dict, init=False)  # once placed
    _nodes: dict[Hashable, list[Node]] = attrs.field(factory=dict, init=False)

    def add(self, node: Node) -> None:
        self._nodes.setdefault(identity(node), []).append(node)

    def placed(self, version: str | None) -> dict[Node, tuple[Blob, ...]]:
        """Where each constant lies; names the files."""
        groups = list(self._nodes.values())
        parts = [entries(nodes[0]) for nodes in groups]
        every = [part for some in parts for part in some]
        layout = [every] if self.one else [[part] for part in every]
        made = [WeightFile(some) for some in layout if some]
        paths = [_path(file, version) for file in made]
        self.files = dict(zip(paths, made, strict=True))
        places = {
            id(part): Blob(path, offset)
            for path, file in self.files.items()
            for part, offset in zip(file.parts, file.offsets, strict=True)
        }
        return {
            node: tuple(places[id(p)] for p in some)
            for nodes, some in zip(groups, parts, strict=True)
            for node in nodes
        }


def _room(dtype: str, count: int) -> int:
    """What an entry takes: its metadata, and its data up to the next multiple of 64."""
    nbytes = -(-count * MIL_KINDS[dtype].bits // 8)
    return METADATA + -(-nbytes // ALIGNMENT) * ALIGNMENT


def _path(file: WeightFile, version: str | None) -> str:
    if version is None:
        name = file.digest()
    else:
        keys = [stable((p.weight.key, p.half, p.dtype, p.count)) for p in file.parts]
        told = "\n".join([version, *keys]).encode()
        name = hashlib.blake2b(told, digest_size=12).hexdigest()
    return f"@model_path/weights/{name}.bin"


def stable(key: object) -> str:
    """A key's text, the same in every process; TypeError where that cannot be promised."""
    if isinstance(key, tuple):
        return f"({','.join(map(stable, key))})"
    if key is None or isinstance(key, str | bytes | int | float):
        return repr(key)
    msg = f"the key of a weight holds {key!r}, whose text may differ from process to process"
    raise TypeError(msg)


def stored_bytes(node: Node) -> int:
    """What a constant takes in weight files."""
    return sum(_room(part.dtype, part.count) for part in entries(node))
