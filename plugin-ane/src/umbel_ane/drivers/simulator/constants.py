"""Constants of a program: written out, in weight files, or as palettes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from umbel_ane.drivers.simulator import errors
from umbel_ane.drivers.simulator.surface import DTYPES
from umbel_ane.mil.blob import BlobError, BlobFile
from umbel_ane.mil.program import Blob, Function, Literal, Statement, Type

MISSING = "the file is not there"
KEPT = 1 << 30  # bytes of weights that a process keeps in float32; others are converted per use
Files = Mapping[str, "bytes | memoryview"]  # weight files by their path in the text

_float32: weakref.WeakValueDictionary[tuple[str, int], np.ndarray] = (
    weakref.WeakValueDictionary()
)


def blobs(main: Function) -> Iterator[tuple[Statement, Type, Blob]]:
    """What lies in weight files: each statement that reads, as which type, where."""
    for statement in main.statements:
        given: list[object] = [*statement.attributes.values(), *statement.args.values()]
        for literal in given:
            if isinstance(literal, Literal) and isinstance(literal.data, Blob):
                yield statement, literal.type, literal.data


def problem(files: Files, blob: Blob, kind: Type) -> str:
    """Why those values cannot be read; nothing if they can."""
    if blob.path not in files:
        return MISSING
    try:
        found = BlobFile(files[blob.path]).metadata(blob.offset)
    except BlobError as error:
        return error.what
    if found.dtype != kind.dtype or found.size != kind.size:
        return f"{found.size} of {found.dtype} lie there, not {kind}"
    return ""


def stored(files: Files, blob: Blob, kind: Type) -> np.ndarray:
    """Those values, flat; where none begin, whatever bytes lie 64 further on (constraint 8)."""
    if not problem(files, blob, kind):
        return BlobFile(files[blob.path]).read(blob.offset, kind.dtype)
    raw = np.frombuffer(files[blob.path], np.uint8)[blob.offset + 64 :]
    dtype = np.dtype(DTYPES.get(kind.dtype, np.uint8))
    return np.resize(raw, kind.size * dtype.itemsize).view(dtype)


@attrs.frozen(eq=False)
class Constants:
    """Values of literals, in float32 or integers. Weights of fp16 stay as they are where too
    many are held in float32; whoever uses them converts."""

    files: Files
    digests: Mapping[str, str]  # of the files' contents: two programs share what they hold
    shapes_only: bool = False  # zeros without memory for what lies in files: to check a program

    def value(self, literal: Literal) -> object:
        """What a literal stands for: a number, a text, or an array of its shape."""
        if isinstance(literal.data, Blob):
            return self._weight(literal.data, literal.type)
        if isinstance(literal.data, np.ndarray):
            array = literal.data.reshape(_dims(literal.type))
            return array.astype(np.float32) if literal.type.dtype == "fp16" else array
        return literal.data

    def _weight(self, blob: Blob, kind: Type) -> np.ndarray:
        if self.shapes_only:
            return np.broadcast_to(np.float32(0), _dims(kind))
        key = self.digests.get(blob.path, ""), blob.offset
        if key[0] and key in _float32:
            return _float32[key].reshape(_dims(kind))
        values = stored(self.files, blob, kind)
        if kind.dtype == "fp16":
            if sum(a.nbytes for a in _float32.values()) + 4 * kind.size > KEPT:
                return values.reshape(_dims(kind))
            values = values.astype(np.float32)
            if key[0]:
                _float32[key] = values
        return values.reshape(_dims(kind))

    def palette(self, statement: Statement) -> np.ndarray:
        """What constexpr_lut_to_dense makes: `indices` into `lut`. In ios18 they have the
        shape of the result, and lut [groups of each axis ..., 2^bits, 1]; before it both are
        flat, and `shape` tells."""
        indices, lut = (self._operand(statement, key) for key in ("indices", "lut"))
        dims = _dims(statement.results[0].type)
        if lut.ndim == 1:
            return np.asarray(_as_float32(lut)[_bits(indices, lut.size, dims)].reshape(dims))
        if lut.ndim != len(dims) + 2 or lut.shape[-1] != 1 or indices.shape != dims:
            msg = f"{statement.name}: indices {indices.shape} do not go with a lut {lut.shape}"
            raise errors.invalid(msg)
        at: list[np.ndarray] = []
        for axis, (n, groups) in enumerate(zip(dims, lut.shape[:-2], strict=True)):
            shape = [n if a == axis else 1 for a in range(len(dims))]
            at.append((np.arange(n) * groups // n).reshape(shape))
        table: np.ndarray = _as_float32(lut[..., 0])
        where = (*at, indices)
        return np.asarray(table[where])

    def _operand(self, statement: Statement, key: str) -> np.ndarray:
        argument = statement.args.get(key)
        if not isinstance(argument, Literal):
            msg = f"{statement.name}: {key} is not written in place"
            raise errors.invalid(msg)
        if isinstance(argument.data, Blob):
            return stored(self.files, argument.data, argument.type).reshape(
                _dims(argument.type)
            )
        return np.asarray(argument.data)


def _dims(kind: Type) -> tuple[int, ...]:
    return tuple(d or 1 for d in kind.dims or ())


def _as_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


def _bits(packed: np.ndarray, entries: int, dims: tuple[int, ...]) -> np.ndarray:
    """Indices out of bytes, from the lowest bit up."""
    width, count = max(1, (entries - 1).bit_length()), int(np.prod(dims))
    flat = packed.reshape(-1).astype(np.uint8)
    if flat.size == count:
        return flat
    bits = np.unpackbits(flat, count=count * width, bitorder="little").reshape(count, width)
    return np.asarray(bits @ (1 << np.arange(width)))
