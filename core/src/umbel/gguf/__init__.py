"""GGUF files: bytes to checked metadata and mapped tensors, and the number formats in them.

>>> with umbel.gguf.open("model.gguf") as file:
...     layers = file.get("llama.block_count", int)
...     weights = file.array("token_embd.weight")
"""

from umbel.gguf.file import GGUFFile, Part, Whole, part_names
from umbel.gguf.file import open_file as open  # noqa: A004 (read as gguf.open, like gzip.open)
from umbel.gguf.header import Metadata, TensorInfo, Value

__all__ = [
    "GGUFFile",
    "Metadata",
    "Part",
    "TensorInfo",
    "Value",
    "Whole",
    "open",
    "part_names",
]
