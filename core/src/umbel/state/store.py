"""A sequence in a file: its tokens and the rows of its state, for the same model only.

The file is a NumPy archive (.npz) with `header` (JSON as bytes), `tokens`, and one array of
rows for each state. It is written beside its place and renamed, so that it is whole or not
there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from umbel.errors import ModelFormatError, OptionError, UmbelError
from umbel.plan.memory import States
from umbel.state.cache import Cache, Sequence

FORMAT = "umbel sequence 1"


def save(path: str | os.PathLike[str], sequence: Sequence, states: States, model: str) -> None:
    """Writes the sequence; `model` is the fingerprint that a load must match."""
    target = Path(path)
    header = {
        "format": FORMAT,
        "model": model,
        "states": _kinds(states),
        "shifts": sequence.shifts,
    }
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    arrays["tokens"] = np.array(sequence.tokens, np.int64)
    for name in states.tensors:
        arrays[f"state.{name}"] = states.read_rows(name, _rows(name, sequence, states))
    write_atomically(target, lambda file: np.savez(file, **arrays))


def write_atomically(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Calls `write(file)` on a file beside `target` and renames it; a failure leaves none."""
    try:
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        msg = "the file cannot be written"
        raise OptionError(msg, where=target, got=error.strerror) from error
    try:
        with os.fdopen(fd, "wb") as file:
            write(file)
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            msg = "the file cannot be written"
            raise OptionError(msg, where=target, got=error.strerror) from error
        raise


def load(path: str | os.PathLike[str], cache: Cache, states: States, model: str) -> Sequence:
    """The sequence of a file, in fresh places; `OptionError` when it is another model's."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            header = dict(json.loads(archive["header"].tobytes()))
            _check(header, path, states, model)
            numbers = archive["tokens"].astype(np.int64, casting="safe")
            tokens = [int(n) for n in numbers.tolist()]
            rows = {name: archive[f"state.{name}"] for name in states.tensors}
    except UmbelError:
        raise
    except FileNotFoundError as error:
        msg = "there is no such file"
        raise OptionError(msg, where=path) from error
    except Exception as error:  # whatever NumPy, zipfile and json think of other bytes
        msg = "this is not a saved sequence"
        raise ModelFormatError(msg, where=path, got=error) from error
    sequence = Sequence()
    cache.commit(sequence, tokens, cache.begin(sequence, len(tokens)))
    sequence.shifts = int(header.get("shifts", 0))
    try:
        for name, data in rows.items():
            _write(name, data, sequence, states, path)
    except BaseException:
        cache.close(sequence)
        raise
    return sequence


def _check(header: dict[str, Any], path: object, states: States, model: str) -> None:
    wanted = {"format": FORMAT, "model": model, "states": _kinds(states)}
    for what, expected in wanted.items():
        if expected != header.get(what):
            msg = f"the saved sequence is of another {what}"
            raise OptionError(msg, where=path, expected=expected, got=header.get(what))


def _write(
    name: str, data: np.ndarray, sequence: Sequence, states: States, path: object
) -> None:
    rows = _rows(name, sequence, states)
    expected = (len(rows), states.row_bytes(name))
    if data.shape != expected or data.dtype != np.uint8:
        msg = f"the saved state {name!r} has another shape"
        raise ModelFormatError(msg, where=path, expected=expected, got=data.shape)
    states.write_rows(name, rows, data)


def _kinds(states: States) -> dict[str, str]:
    return {name: str(t.dtype) for name, t in states.tensors.items()}


def _rows(name: str, sequence: Sequence, states: States) -> np.ndarray:
    """The rows of a state that belong to the sequence."""
    if name.partition(".")[0] in ("k_cache", "v_cache"):
        return sequence.cells
    return np.array([sequence.slot], np.int32)
