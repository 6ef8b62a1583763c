"""Writes a GGUF file, each tensor when its turn comes, and reads its header back first."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import attrs
import numpy as np

from umbel import gguf
from umbel.errors import ModelFormatError, UmbelError
from umbel.gguf.types import DType
from umbel.graph import Role
from umbel.models import ModelDefinition, StateShape, StepShape, architecture
from umbel.ops import OPS
from umbel.state.store import write_atomically
from umbel.text import load_tokenizer
from umbel.tools.gguf_file import check_room, encode, header, padding, size

ALIGNMENT = 32
TYPES = {"F32": 0, "F16": 1, "BF16": 32}  # and their general.file_type
UNREAD = ("rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight")

Progress = Callable[[int, int, str], object]  # tensors done, all of them, the next one's name


@attrs.frozen
class Entry:
    """A tensor of the file, whose values come, in any type, when they are asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    values: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return size(self.shape, self.dtype)


def write(
    out: Path, keys: dict[str, Any], entries: Sequence[Entry], source: Path, progress: Progress
) -> None:
    """The whole file or none; errors of the model speak of `source`."""
    try:
        values = {key: encode(value) for key, value in keys.items()}
        head = header(values, [(e.name, e.shape, e.dtype) for e in entries], ALIGNMENT)
    except UnicodeEncodeError as error:
        msg, got = "a text holds half of a UTF-16 pair, which is no character", error.object
        raise ModelFormatError(msg, where=source, got=f"{got!r:.80}") from error
    except (OverflowError, struct.error) as error:
        msg, expected = "a number does not fit into the file", "a float32, or from 0 to 2^32"
        raise ModelFormatError(msg, where=source, expected=expected, got=error) from error
    total = len(head) + sum(e.nbytes + -e.nbytes % ALIGNMENT for e in entries)
    check_room(out, total)

    def fill(file: IO[bytes]) -> None:
        file.write(head)
        file.truncate(total)
        file.flush()
        check(Path(file.name), source)
        for n, entry in enumerate(entries):
            progress(n, len(entries), entry.name)
            file.write(_stored(entry, source).data)
            file.write(padding(entry.nbytes, ALIGNMENT))

    write_atomically(out, fill)


def _stored(entry: Entry, source: Path) -> np.ndarray:
    """The values as the file holds them; one that is not finite, or becomes so, is refused."""
    values = np.ascontiguousarray(entry.values())
    dtype = entry.dtype.numpy or import_module("ml_dtypes").bfloat16
    with np.errstate(over="ignore"):
        stored = values.astype(dtype, copy=False)
    if not np.isfinite(stored).all():
        lost = bool(np.isfinite(values).all())
        msg = f"the tensor {entry.name!r} holds a value that is "
        msg += f"too large for {str(entry.dtype).upper()}" if lost else "not finite"
        got = float(np.abs(values).max()) if lost else None
        do = "take --type BF16 or F32" if lost else "fetch the folder again"
        raise ModelFormatError(msg, where=source, got=got, do=do)
    return stored.view("u1")


def check(path: Path, source: Path) -> None:
    """Reads the file as loading a model does; every tensor must be one that the model reads."""
    try:
        with gguf.open(path) as file:
            name = file.get("general.architecture", str)
            definition = ModelDefinition(file, architecture(name), OPS)
            definition.check_vocabulary(
                load_tokenizer(file.metadata, where=str(source)).n_vocab
            )
            length = 1 if definition.architecture.pooled else 256
            graph = definition.graph(StepShape(1, 1, length, 1), StateShape(512, 4)).graph
            names = {t.name for t in graph.leaves(Role.WEIGHT)}
            unread = [name for name in file.tensors if name not in names and name not in UNREAD]
    except UmbelError as error:
        error.where = source
        raise
    if unread:
        msg, got = "the folder has tensors that the model would not read", ", ".join(unread[:4])
        raise ModelFormatError(msg, where=source, got=got)
