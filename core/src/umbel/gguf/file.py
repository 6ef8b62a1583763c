"""An open GGUF model: metadata, tensor descriptions, and tensors as arrays on the mapped file.

Opening reads the header of every part and no tensor data. Arrays are read-only views of the
mapping, which goes when the file is closed and the last of them is gone. (A file must not be
shortened while it is open: the system answers the access to a vanished page with a signal.)

A model may be split over several files, NAME-00001-of-0000N.gguf, as gguf-split writes them.
Each part is a GGUF file with the keys `split.no` (from 0) and `split.count`; the first also
holds the model's metadata, and every part its own tensors. Names and keys must agree: a part
of such a name without the keys, or with keys under another name, is refused, since a model
that lacks tensors without anybody noticing would be the alternative.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np

from umbel.errors import UmbelError, UnsupportedModelError
from umbel.gguf.header import Header, TensorInfo, read_header, refuse
from umbel.gguf.types import DECODABLE

T = TypeVar("T")
_REQUIRED: Any = object()
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)
_PER_PART = ("split.", "general.alignment")  # keys that say something of their own part only


@attrs.define(eq=False)
class Whole:
    """What all files of one open model share."""

    size: int  # bytes of all


class Part(mmap.mmap):
    """One file of a model, mapped; the `base` of its arrays leads to it."""

    whole: Whole


def open_file(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file; of a split model any part, which opens all.

    Raises `ModelFormatError` for whatever cannot be read or trusted.
    """
    given = Path(path)
    data = _map(given)
    header = read_header(data, given)
    names = part_names(given.name)
    _check_numbers(given, header, names.index(given.name), len(names))
    if len(names) == 1:
        return GGUFFile(given, header, [data])
    paths = [given.with_name(name) for name in names]
    maps = [_map(part) for part in paths]
    headers = [read_header(data, part) for data, part in zip(maps, paths, strict=True)]
    return GGUFFile(paths[0], _merge(paths, headers), maps)


def _map(path: Path) -> Part:
    try:
        # Asked first: opening a FIFO would wait for its writer, and a device has no end.
        if not path.is_file():
            refuse("there is no such file, or it is not a regular file", path)
        with path.open("rb") as file:
            return Part(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: there is nothing to map in it
        refuse("the file cannot be read, or is truncated to nothing", path, got=error)


def part_names(name: str) -> list[str]:
    """All files of the split model that a file of this name belongs to; else the file alone."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    stem, count = match.groups()
    names = [f"{stem}-{n:05}-of-{count}.gguf" for n in range(1, int(count) + 1)]
    return names if name in names else [name]


def _merge(paths: list[Path], headers: list[Header]) -> Header:
    """The first part's header with the tensors of all, whose numbers must add up."""
    first, tensors = headers[0], dict[str, TensorInfo]()
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        _check_numbers(path, header, index, len(paths))
        for key in first.metadata.keys() & header.metadata.keys():
            if not key.startswith(_PER_PART) and first.metadata[key] != header.metadata[key]:
                refuse(f"the metadata key {key[:80]!r} differs from the first part's", path)
        for name, info in header.tensors.items():
            if name in tensors:
                refuse(f"the tensor {name!r} occurs in an earlier part too", path)
            tensors[name] = attrs.evolve(info, part=index)
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        refuse("the parts do not add up", paths[0], f"{total!r:.40} tensors", len(tensors))
    return attrs.evolve(first, tensors=tensors)


def _check_numbers(path: Path, header: Header, part: int, count: int) -> None:
    """What the file holds must agree with the place that its name gives it."""
    metadata = header.metadata
    kept = [metadata.get("split.no", 0), metadata.get("split.count", 1) or 1]  # 0: no split
    if kept != [part, count]:
        what = "the name of the file does not agree with its split.no and split.count"
        do = "give every part the name that it had"
        got = f"split.no {kept[0]!r:.40}, split.count {kept[1]!r:.40}"
        refuse(what, path, f"split.no {part}, split.count {count}", got, do)


class GGUFFile(AbstractContextManager["GGUFFile"]):
    """An open model; use it as a context manager, or `close` it.

    `path` is the (first) file, `size` the bytes of all parts, `tensors` is in file order.
    Metadata stays readable after closing.
    """

    def __init__(self, path: Path, header: Header, maps: list[Part]) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = header.metadata
        self.tensors = header.tensors
        self.size = sum(len(data) for data in maps)
        self._maps = maps
        whole = Whole(self.size)
        for data in maps:
            data.whole = whole

    @property
    def unsupported(self) -> list[tuple[str, int]]:
        """The tensors that nothing here can decode: name and type number.

        Those of an unknown type have no array either.
        """
        tensors = self.tensors.values()
        return [(t.name, t.dtype.number) for t in tensors if t.dtype.name not in DECODABLE]

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """The metadata value `key`, which must be of `kind`.

        It is required unless there is a default; a value of the wrong kind is an error even
        then. `kind` is int, float (an int will do), bool, str or list.
        """
        expected = f"{key}: {kind.__name__}"
        if key not in self.metadata:
            if default is _REQUIRED:
                refuse(f"the metadata key {key!r} is missing", self.path, expected)
            return default
        value: Any = self.metadata[key]
        kinds = (int, float) if kind is float else (kind,)
        if type(value) not in kinds:  # not isinstance: a bool is no number here
            what = f"the metadata key {key!r} has a wrong type"
            refuse(what, self.path, expected, f"{type(value).__name__} {value!r:.60}")
        return kind(value)  # type: ignore[call-arg]  # for a float this may be an int

    def array(self, name: str) -> np.ndarray:
        """The tensor `name` as a read-only view of the file.

        A type that NumPy knows comes as itself; every other (bf16 too) as bytes, with
        shape (*shape[:-1], bytes of a row).
        """
        info = self.tensors.get(name)
        if info is None:
            refuse(f"the tensor {name!r} is missing", self.path)
        if not info.dtype.block_bytes:
            msg = f"the tensor {name!r} has an unknown type"
            raise UnsupportedModelError(msg, where=self.path, got=info.dtype.name)
        whole = np.frombuffer(self._map_of(info.part), np.uint8)
        raw = whole[info.offset : info.offset + info.nbytes]
        if info.dtype.numpy is not None:
            return raw.view(info.dtype.numpy).reshape(info.shape)
        row = info.dtype.row_bytes(info.shape[-1] if info.shape else 1)
        return raw.reshape(*info.shape[:-1], row)

    def raw_value(self, key: str) -> bytes:
        """The bytes of the metadata value `key` in the (first) file, its type before it."""
        return self._map_of(0)[self.metadata.spans[key]]

    def _map_of(self, part: int) -> Part:
        if not self._maps:
            msg = "the file is closed"
            raise UmbelError(msg, where=self.path)
        return self._maps[part]

    def close(self) -> None:
        """Let go of the mappings. Arrays that still live keep theirs."""
        # Not mmap.close: it refuses, rightly, while an array looks at the memory.
        self._maps = []

    def __exit__(self, *_: object) -> None:
        self.close()
