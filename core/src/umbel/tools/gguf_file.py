"""What the commands that write a model file share: where it may be, and what it begins with.

Reference: the specification of GGUF, version 3.
"""

import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

from umbel.errors import OptionError
from umbel.gguf.header import ARRAY, BOOL, STRING, U32
from umbel.gguf.types import DType

VERSION = 3
# Of a single value and of those in a list: the number of its type, and how it is packed.
_SINGLE = {bool: (BOOL, "?"), int: (U32, "I"), float: (6, "f")}
_LISTED = {**_SINGLE, int: (5, "i")}

Tensor: TypeAlias = tuple[str, tuple[int, ...], DType]  # its name and what it will be


def check_place(out: Path, sources: Iterable[Path], force: bool) -> None:
    """Refuses what is read, a file that is there (but for `force`), a folder that is not."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in sources):
        msg = "OUT is IN: a file cannot be read and replaced at once"
        raise OptionError(msg, where=out, do="give it another name")
    if out.is_file() and not force:
        msg, do = "the file exists already", "add --force to replace it, or give another name"
        raise OptionError(msg, where=out, do=do)
    if not Path(os.path.realpath(out)).parent.is_dir():
        msg = "the file cannot be written: its folder does not exist"
        raise OptionError(msg, where=out)


def check_room(out: Path, wanted: int) -> None:
    """Minutes of work are not to end at a full disk."""
    folder = Path(os.path.realpath(out)).parent
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < wanted:  # some file systems do not know
        msg, got = "there is not enough room on the disk", f"{usage.free} bytes"
        do = "make room, or take a smaller type"
        raise OptionError(msg, where=folder, expected=f"{wanted} bytes", got=got, do=do)


def size(shape: tuple[int, ...], dtype: DType) -> int:
    """Bytes of a tensor."""
    *axes, row = shape or (1,)
    count = dtype.row_bytes(row)
    for n in axes:
        count *= n
    return count


def padding(n: int, alignment: int) -> bytes:
    """What follows `n` bytes, so that the next ones are aligned."""
    return b"\0" * (-n % alignment)


def header(values: Mapping[str, bytes], tensors: Iterable[Tensor], alignment: int) -> bytes:
    """All that stands before the tensor data; `values` have their types before them."""
    tensors = list(tensors)
    sizes = [size(shape, dtype) for _, shape, dtype in tensors]
    offsets = accumulate((n + -n % alignment for n in sizes), initial=0)
    parts = [struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(values))]
    parts += [_string(key) + value for key, value in values.items()]
    for (name, shape, dtype), offset in zip(tensors, offsets, strict=False):
        numbers = (len(shape), *shape[::-1], dtype.number, offset)
        parts.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", *numbers))
    made = b"".join(parts)
    return made + padding(len(made), alignment)


def encode(value: object) -> bytes:
    """A value of metadata, its type before it: int is u32, float f32, bytes an array of u8."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bytes):
        return struct.pack("<IIQ", ARRAY, 0, len(value)) + value
    if not isinstance(value, list):
        kind, code = _SINGLE[type(value)]
        return struct.pack(f"<I{code}", kind, value)
    if not value or isinstance(value[0], str):  # of an empty list anything can be said
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    kind, code = _LISTED[type(value[0])]
    return struct.pack(f"<IIQ{len(value)}{code}", ARRAY, kind, len(value), *value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
