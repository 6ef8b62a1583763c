"""A sequence in a file: its tokens and the rows of its state, for the same model only.

The file is a NumPy archive (.npz) with `header` (JSON as bytes), `tokens`, `shifts` (how often
the context was shifted) and one array of rows for each state. It is written beside its place
and renamed, so that it is whole or not there.
"""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from umbel.errors import ModelFormatError, OptionError
from umbel.models.builder import LORA
from umbel.plan.memory import States
from umbel.state.cache import NONE, Cache, Mix, Sequence


def save(path: str | os.PathLike[str], sequence: Sequence, states: States, model: str) -> None:
    """Writes the sequence; `model` is the fingerprint that a load must match."""
    header = json.dumps(_header(states, model, sequence.adapters)).encode()
    arrays: dict[str, Any] = {"header": np.frombuffer(header, np.uint8)}
    arrays["tokens"] = np.array(sequence.tokens, np.int64)
    arrays["shifts"] = np.array(sequence.shifts)
    for name in _own(states):
        arrays[f"state.{name}"] = states.read_rows(name, _rows(name, sequence))
    write_atomically(Path(path), lambda file: np.savez(file, **arrays))


def write_atomically(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Calls `write(file)` on a file beside `target` and renames it; a failure leaves none.

    A link stays one: what it points to is written.
    """
    target = Path(os.path.realpath(target))
    beside = target.parent / f".umbel-{secrets.token_hex(8)}"
    try:
        if target.exists() and not target.is_file():
            msg = "the file cannot be written: there is something else in its place"
            raise OptionError(msg, where=target, expected="a regular file, or none")
        try:
            with beside.open("xb") as file:
                write(file)
            beside.replace(target)
        finally:  # entered before there is a file: Ctrl-C at any time leaves none
            beside.unlink(missing_ok=True)
    except OSError as error:
        msg = "the file cannot be written"
        raise OptionError(msg, where=target, got=error.strerror) from error


def load(
    path: str | os.PathLike[str],
    cache: Cache,
    states: States,
    model: str,
    n_vocab: int,
    adapters: Mix = (),
) -> Sequence:
    """The sequence of a file, in fresh places; `OptionError` when it is another model's, or was
    computed with other adapters.

    Its tokens must be ids below `n_vocab`.
    """
    try:
        # Not `numpy.load`: it takes what is no archive for a pickle, and recommends those.
        with open(path, "rb") as file, np.lib.npyio.NpzFile(file) as archive:
            arrays = dict(archive)
        header = dict(json.loads(arrays["header"].tobytes()))
        tokens = _numbers(arrays["tokens"], 1, n_vocab)
        (shifts,) = _numbers(arrays["shifts"], 0)
    except FileNotFoundError as error:
        msg = "there is no such file"
        raise OptionError(msg, where=path) from error
    except Exception as error:  # whatever NumPy, zipfile and json think of other bytes
        msg = "this is not a saved sequence"
        raise ModelFormatError(msg, where=path, got=error) from error
    for what, expected in _header(states, model, adapters).items():
        if expected != header.get(what):
            msg = f"the saved sequence is of another {what}"
            raise OptionError(msg, where=path, expected=expected, got=header.get(what))
    sequence = Sequence(shifts=shifts, adapters=adapters)
    if not tokens:  # and so no places
        return sequence
    cache.commit(sequence, tokens, cache.begin(sequence, len(tokens)))
    try:
        for name in _own(states):
            data, rows = arrays.get(f"state.{name}", NONE), _rows(name, sequence)
            if data.dtype != np.uint8 or data.shape != (len(rows), states.row_bytes(name)):
                msg = f"the saved state {name!r} has another shape"
                expected = f"{len(rows)} rows of {states.row_bytes(name)} bytes"
                raise ModelFormatError(msg, where=path, expected=expected, got=data.shape)
            states.write_rows(name, rows, data)
    except BaseException:
        cache.close(sequence)
        raise
    return sequence


def _numbers(array: np.ndarray, ndim: int, stop: int = 1 << 31) -> list[int]:
    """Whole numbers from 0 on, and below `stop`."""
    numbers: list[int] = array.astype(np.int64, casting="safe").reshape(-1).tolist()
    bad = next((n for n in numbers if n not in range(stop)), None)
    if array.ndim != ndim or bad is not None:
        msg = f"{array.ndim} dimensions and {bad}, not {ndim} and 0 to {stop - 1}"
        raise ValueError(msg)
    return numbers


def _header(states: States, model: str, adapters: Mix) -> dict[str, Any]:
    """What a file and the model that loads it must agree on."""
    kinds = {name: str(states.tensors[name].dtype) for name in _own(states)}
    mix = [list(pair) for pair in adapters]
    return {"format": "umbel sequence 1", "model": model, "states": kinds, "adapter": mix}


def _own(states: States) -> list[str]:
    """The states of which sequences have rows of their own; adapters are everybody's."""
    return [name for name in states.tensors if not name.startswith(LORA)]


def _rows(name: str, sequence: Sequence) -> np.ndarray:
    """The rows of a state that belong to the sequence."""
    if name.startswith(("k_cache", "v_cache")):
        return sequence.cells
    return np.array([sequence.slot], np.int32)
