"""Writes a GGUF file, each tensor when its turn comes, and reads its header back first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from umbel import gguf
from umbel.errors import ModelFormatError, OptionError, UmbelError
from umbel.graph import Role
from umbel.models import ModelDefinition, StateShape, StepShape, architecture
from umbel.ops import OPS
from umbel.state.store import write_atomically
from umbel.text import load_tokenizer

ALIGNMENT = 32
TYPES = {"F32": (0, 4, 0), "F16": (1, 2, 1), "BF16": (30, 2, 32)}  # number, bytes, file_type
UNREAD = ("rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight")

Progress = Callable[[int, int, str], object]  # tensors done, all of them, the next one's name


@attrs.frozen
class Entry:
    """A tensor of the file, whose values come, in any type, when they are asked for."""

    name: str
    shape: tuple[int, ...]
    kind: str  # one of TYPES
    values: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * TYPES[self.kind][1]


def write(
    out: Path, keys: dict[str, Any], entries: Sequence[Entry], source: Path, progress: Progress
) -> None:
    """The whole file or none; errors of the model speak of `source`."""
    size = sum(-(-entry.nbytes // ALIGNMENT) * ALIGNMENT for entry in entries)
    free = shutil.disk_usage(out.parent).free
    if size > free:
        msg, do = "there is not enough room on the disk", "make room, or take --type F16"
        raise OptionError(msg, where=out, expected=f"{size} bytes", got=free, do=do)

    def fill(path: Path) -> None:
        writer = import_module("gguf").GGUFWriter(path, keys["general.architecture"])
        try:
            _write_header(writer, keys, entries)
            start = path.stat().st_size
            os.truncate(path, start + -start % ALIGNMENT + size)
            check(path, source)
            for n, entry in enumerate(entries):
                progress(n, len(entries), entry.name)
                writer.write_tensor_data(_stored(entry, source))
        except UnicodeEncodeError as error:
            msg, got = "a text holds half of a UTF-16 pair, which is no character", error.object
            raise ModelFormatError(msg, where=source, got=f"{got!r:.80}") from error
        finally:
            writer.close()

    write_atomically(out, lambda file: fill(Path(file.name)))


def _write_header(writer: Any, keys: dict[str, Any], entries: Sequence[Entry]) -> None:
    """All but the values of the tensors."""
    add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    add |= {float: writer.add_float32, list: writer.add_array, bytes: writer.add_array}
    for key, value in keys.items():
        if key != "general.architecture":
            add[type(value)](key, value)
    for entry in entries:
        kind = import_module("gguf").GGMLQuantizationType(TYPES[entry.kind][0])
        # Any dtype but uint8, which would stand for rows of blocks.
        writer.add_tensor_info(entry.name, entry.shape, np.dtype("u2"), entry.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _stored(entry: Entry, source: Path) -> np.ndarray:
    """The values as the file holds them; one that is not finite, or becomes so, is refused."""
    values = np.ascontiguousarray(entry.values())
    types: dict[str, Any] = {"F32": "<f4", "F16": "<f2"}
    if entry.kind == "BF16":
        types["BF16"] = import_module("ml_dtypes").bfloat16
    with np.errstate(over="ignore"):
        stored = values.astype(types[entry.kind], copy=False)
    if not np.isfinite(stored).all():
        lost = bool(np.isfinite(values).all())
        msg = f"the tensor {entry.name!r} holds a value that is "
        msg += f"too large for {entry.kind}" if lost else "not finite"
        got = float(np.abs(values).max()) if lost else None
        do = "take --type BF16 or F32" if lost else "fetch the folder again"
        raise ModelFormatError(msg, where=source, got=got, do=do)
    return stored.view("u2") if entry.kind == "BF16" else stored


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
