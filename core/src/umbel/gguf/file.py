"""An open GGUF model: metadata, tensor descriptions, and tensors as arrays on the mapped file.

Opening reads the header of every part and no tensor data. Arrays are read-only views of the
mapping, which goes when the file is closed and the last of them is gone. (A file must not be
shortened while it is open: the system answers the access to a vanished page with a signal.)
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, overload

import numpy as np

from umbel.errors import UmbelError, UnsupportedModelError
from umbel.gguf import split
from umbel.gguf.header import Header, TensorInfo, read_header
from umbel.gguf.quants import DECODABLE
from umbel.gguf.values import Metadata, Value, refuse

T = TypeVar("T")
D = TypeVar("D")
_REQUIRED: Any = object()


def open_file(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file; of a split model any part, which opens all.

    Raises `ModelFormatError` for whatever cannot be read or trusted.
    """
    given = Path(path)
    data = _map(given)
    header = read_header(data, given)
    paths = split.locate(given, header)
    maps = [data if part == given else _map(part) for part in paths]
    if len(paths) > 1:
        header = split.merge(paths, list(map(read_header, maps, paths)))
    return GGUFFile(paths[0], header, maps)


def _map(path: Path) -> mmap.mmap:
    try:
        # Asked first: opening a FIFO would wait for its writer, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            refuse("this is not a regular file", path, "a GGUF file")
        with path.open("rb") as file:
            if not file.read(1):
                refuse("the file is empty: truncated, or not a GGUF file", path, "a GGUF file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        refuse("the file cannot be read", path, "a GGUF file", error)


class GGUFFile:
    """An open model; use it as a context manager, or `close` it.

    `path` is the (first) file, `size` the bytes of all parts, `tensors` is in file order.
    Metadata stays readable after closing.
    """

    def __init__(self, path: Path, header: Header, maps: list[mmap.mmap]) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: Metadata = header.metadata
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.size = sum(len(data) for data in maps)
        self._maps = maps

    @property
    def unsupported(self) -> list[tuple[str, int]]:
        """The tensors that nothing here can decode: name and type number.

        Those of an unknown type have no array either.
        """
        tensors = self.tensors.values()
        return [(t.name, t.dtype.number) for t in tensors if t.dtype.name not in DECODABLE]

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """The metadata value `key`, which must be of `kind`.

        It is required unless there is a default; a value of the wrong kind is an error even
        then. `kind` is int, float (an int will do), bool, str, list, or a list of one of them
        such as `list[str]`.
        """
        expected = f"{key}: {kind if get_origin(kind) else kind.__name__}"
        if key not in self.metadata:
            if default is _REQUIRED:
                refuse(f"the metadata key {key!r} is missing", self.path, expected)
            return default
        value: Any = self.metadata[key]
        if not _is_a(value, kind):
            what = f"the metadata key {key!r} has a wrong type"
            refuse(what, self.path, expected, f"{type(value).__name__} {value!r:.60}")
        return float(value) if kind is float else value

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
        if not self._maps:
            msg = "the file is closed"
            raise UmbelError(msg, where=self.path)
        data, offset = (self._maps[info.part], info.offset) if info.nbytes else (b"", 0)
        raw = np.frombuffer(data, np.uint8, info.nbytes, offset)
        if info.dtype.numpy is not None:
            return raw.view(info.dtype.numpy).reshape(info.shape)
        row = info.dtype.row_bytes(info.shape[-1] if info.shape else 1)
        return raw.reshape(*info.shape[:-1], row)

    def close(self) -> None:
        """Let go of the mappings. Arrays that still live keep theirs."""
        # Not mmap.close: it refuses, rightly, while an array looks at the memory.
        self._maps = []

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_a(value: Value, kind: Any) -> bool:
    if get_origin(kind) is list:
        # The elements of an array are of one type: the first speaks for all.
        return isinstance(value, list) and all(_is_a(v, get_args(kind)[0]) for v in value[:1])
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind  # not isinstance: a bool is no number here
