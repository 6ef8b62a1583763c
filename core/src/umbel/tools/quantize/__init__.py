"""`quantise`: a GGUF file in other types, from any type that can be read.

`mixtures.py` says which type each tensor gets, `encode.py` makes it, `output.py` is the layout
of the new file. Everything that can be refused is refused before work begins, and what is
written becomes OUT only when it is whole.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from logging import getLogger
from math import prod
from pathlib import Path
from typing import IO

import attrs

from umbel import gguf
from umbel.errors import OptionError, UnsupportedModelError
from umbel.gguf import GGUFFile, part_names
from umbel.gguf.types import DType
from umbel.host import cpus
from umbel.host.order import in_order
from umbel.state.store import write_atomically
from umbel.tools.gguf_file import check_place, check_room
from umbel.tools.quantize import encode, mixtures, output
from umbel.tools.quantize.mixtures import Choice

log = getLogger("umbel")


@attrs.frozen
class Report:
    """What came of it: bytes of the files, bits for each weight, tensors of each type."""

    before: int
    after: int
    bits: float
    types: dict[str, int]


def quantise(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    kind: str,
    *,
    output_type: str | None = None,
    threads: int = 0,
    force: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Report:
    """Writes the model `source` as `target`, in the types of the mixture `kind`.

    `output_type` is for the output matrix, 0 threads are one for each processor, `force`
    replaces a file that is there, `progress` hears the bytes written, and of how many.
    """
    mixture = mixtures.find(kind)
    dtype = None if output_type is None else mixtures.find_dtype(output_type)
    threads = _checked_threads(threads)
    with gguf.open(source) as file:
        path = _checked_target(file, Path(target), force)
        choices = _chosen(file, mixture, dtype)
        encoded = encode.encoder(c.dtype for c in choices if c.dtype != c.tensor.dtype)
        head = output.header(file, choices, mixture.number)
        sizes = [output.size(c) for c in choices]
        total = len(head) + sum(n + -n % file.alignment for n in sizes)
        check_room(path, total)

        def write(out: IO[bytes]) -> None:
            out.write(head)
            work = encode.jobs(file, choices, encoded)
            with closing(in_order(work, threads, 2 * threads)) as pieces:
                for piece in pieces:
                    out.write(piece)
                    progress(out.tell(), total)

        write_atomically(path, write)
        weights = sum(prod(c.tensor.shape) for c in choices)
        types = Counter(c.dtype.name for c in choices)
        return Report(file.size, total, 8 * sum(sizes) / max(weights, 1), dict(types))


def _checked_threads(wanted: int) -> int:
    most = cpus()
    if wanted < 0:
        msg = "the number of threads is below 0"
        raise OptionError(msg, where="threads", expected="0 or more", got=wanted)
    if wanted > most:
        log.warning("--threads %d is more than the %d processors: %d it is", wanted, most, most)
    return min(wanted or most, most)


def _checked_target(file: GGUFFile, target: Path, force: bool) -> Path:
    """OUT, where it may be written."""
    target, names = target.expanduser(), part_names(file.path.name)
    check_place(target, map(file.path.with_name, names), force)
    if len(part_names(target.name)) > 1:
        msg = "OUT has the name of a part of a split model, and all goes into one file"
        raise OptionError(msg, where=target, do="give it a name without -0000N-of-0000N")
    return target


def _chosen(file: GGUFFile, mixture: mixtures.Mixture, dtype: DType | None) -> list[Choice]:
    """What becomes of each tensor; what is not as one would expect is told."""
    if file.unsupported:
        msg = "tensors have types that nothing here can decode"
        got = ", ".join(f"{name} ({file.tensors[name].dtype})" for name, _ in file.unsupported)
        raise UnsupportedModelError(msg, where=file.path, got=got)
    choices = mixtures.choose(file, mixture, dtype)
    changed = [c for c in choices if c.dtype != c.tensor.dtype]
    if not changed:
        log.warning("every tensor keeps the type that it has")
    if types := {c.tensor.dtype.name for c in changed if c.tensor.dtype.quantised}:
        text = "IN is already quantised (%s), and what that has cost is lost: take the original"
        log.warning(text, ", ".join(sorted(types)))
    unfit = Counter((c.wanted, c.tensor.shape[-1], c.dtype) for c in choices if c.is_fallback)
    for (wanted, row, other), n in unfit.items():
        text = "rows of %d values are no whole number of %s blocks (%d): %s in %d of %d tensors"
        log.warning(text, row, wanted, wanted.block, other, n, len(choices))
    return choices
