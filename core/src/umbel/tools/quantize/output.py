"""The file that is written: the metadata of another, its tensors in other types.

Values of metadata are copied as they stand in the file, since a number that is read no longer
tells which of twelve types it had. Of a split model the first part's metadata is taken, without
what it says of parts.
"""

import struct
from collections.abc import Iterator
from itertools import accumulate

from umbel.gguf import GGUFFile
from umbel.tools.quantize.mixtures import Choice

U32 = 4
VERSION = 3
QUANTISATION = 2  # the version of the formats, GGML_QNT_VERSION


def size(choice: Choice) -> int:
    """Bytes of the tensor in its new type."""
    *axes, row = choice.tensor.shape or (1,)
    count = choice.dtype.row_bytes(row)
    for n in axes:
        count *= n
    return count


def padding(n: int, alignment: int) -> bytes:
    """What follows `n` bytes, so that the next ones are aligned."""
    return b"\0" * (-n % alignment)


def header(file: GGUFFile, choices: list[Choice], file_type: int) -> bytes:
    """All that stands before the tensor data."""
    values = _metadata(file, file_type)
    parts = [struct.pack("<4sIQQ", b"GGUF", VERSION, len(choices), len(values))]
    parts += [_string(key) + value for key, value in values.items()]
    parts += _descriptions(choices, file.alignment)
    made = b"".join(parts)
    return made + padding(len(made), file.alignment)


def _metadata(file: GGUFFile, file_type: int) -> dict[str, bytes]:
    keys = [key for key in file.metadata if not key.startswith("split.")]
    values = {key: file.raw_value(key) for key in keys}
    values["general.quantization_version"] = struct.pack("<II", U32, QUANTISATION)
    values["general.file_type"] = struct.pack("<II", U32, file_type)
    return values


def _descriptions(choices: list[Choice], alignment: int) -> Iterator[bytes]:
    sizes = [size(choice) for choice in choices]
    offsets = accumulate((n + -n % alignment for n in sizes), initial=0)
    for choice, offset in zip(choices, offsets, strict=False):
        shape = choice.tensor.shape[::-1]
        numbers = struct.pack(f"<I{len(shape)}QI", len(shape), *shape, choice.dtype.number)
        yield _string(choice.tensor.name) + numbers + struct.pack("<Q", offset)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
