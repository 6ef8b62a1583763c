"""A writer of GGUF files, good and bad, from scratch: it checks nothing and can lie everywhere.

The layout follows the GGUF specification; no bytes come from any real or published file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_CODES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}


class Writer:
    """Builds the pieces of a file as bytes; `order` "<" is what GGUF asks for."""

    def string(self, text: str | bytes, order: str = "<") -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack(order + "Q", len(raw)) + raw

    def floats(self, *values: float, order: str = "<") -> bytes:
        return struct.pack(f"{order}{len(values)}f", *values)

    def raw_pair(self, key: str | bytes, number: int, raw: bytes, order: str = "<") -> bytes:
        """A key, any type number, and what is claimed to be its value."""
        return self.string(key, order) + struct.pack(order + "I", number) + raw

    def pair(self, key: str | bytes, kind: str, value: Any, order: str = "<") -> bytes:
        """A key and a value; `kind` "[str]" is an array of strings, "[[i32]]" one of arrays."""
        number, raw = self._value(kind, value, order)
        return self.raw_pair(key, number, raw, order)

    def _value(self, kind: str, value: Any, order: str) -> tuple[int, bytes]:
        if kind == "str":
            return 8, self.string(value, order)
        if kind.startswith("["):
            items = [self._value(kind[1:-1], item, order) for item in value]
            number = items[0][0] if items else 8
            head = struct.pack(order + "IQ", number, len(items))
            return 9, head + b"".join(raw for _, raw in items)
        number, code = _CODES[kind]
        return number, struct.pack(order + code, value)

    def tensor(
        self, name: str | bytes, dims: Sequence[int], number: int, offset: int, order: str = "<"
    ) -> bytes:
        """A tensor's description; `dims` in file order, the contiguous one first."""
        sizes = b"".join(struct.pack(order + "Q", n % 2**64) for n in dims)
        head = self.string(name, order) + struct.pack(order + "I", len(dims))
        return head + sizes + struct.pack(order + "IQ", number, offset)

    def file(
        self,
        pairs: Sequence[bytes] = (),
        tensors: Sequence[bytes] = (),
        data: bytes = b"",
        *,
        alignment: int = 32,
        version: int = 3,
        n_pairs: int | None = None,
        n_tensors: int | None = None,
        magic: bytes = b"GGUF",
        order: str = "<",
    ) -> bytes:
        """A whole file; counts that are given replace the true ones."""
        counts = (
            len(tensors) if n_tensors is None else n_tensors,
            len(pairs) if n_pairs is None else n_pairs,
        )
        head = magic + struct.pack(order + "IQQ", version, *counts)
        head += b"".join(pairs) + b"".join(tensors)
        if tensors or data:
            head += bytes(-len(head) % alignment)
        return head + data


@pytest.fixture(scope="session")
def w() -> Writer:
    """The writer, `w` for short: whole files are built in one expression of its calls."""
    return Writer()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Writes bytes to a file and gives its path."""

    def save(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return save
