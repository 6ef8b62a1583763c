"""The head of the file that is written: the metadata of another, its tensors in other types.

Values of metadata are copied as they stand in the file, since a number that is read no longer
tells which of twelve types it had. Of a split model the first part's metadata is taken, without
what it says of parts.
"""

from umbel.gguf import GGUFFile
from umbel.tools import gguf_file
from umbel.tools.quantize.mixtures import Choice

QUANTISATION = 2  # the version of the formats, GGML_QNT_VERSION


def size(choice: Choice) -> int:
    """Bytes of the tensor in its new type."""
    return gguf_file.size(choice.tensor.shape, choice.dtype)


def header(file: GGUFFile, choices: list[Choice], file_type: int) -> bytes:
    """All that stands before the tensor data."""
    keys = [key for key in file.metadata if not key.startswith("split.")]
    values = {key: file.raw_value(key) for key in keys}
    values["general.quantization_version"] = gguf_file.encode(QUANTISATION)
    values["general.file_type"] = gguf_file.encode(file_type)
    tensors = [(c.tensor.name, c.tensor.shape, c.dtype) for c in choices]
    return gguf_file.header(values, tensors, file.alignment)
