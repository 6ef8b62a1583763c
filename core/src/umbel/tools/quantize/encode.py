"""The tensors in their new types, some rows at a time and on several threads.

The `gguf` package writes the plain types, `libgguf` (the extra [quantize]) the others; both let
other threads run while they work. A piece has some 10^5 values, and a few are under way at
once: memory does not grow with the model.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from umbel.errors import OptionError, UnsupportedModelError
from umbel.gguf import GGUFFile
from umbel.gguf.types import DType, check, dequantise, quantise
from umbel.tools.gguf_file import padding
from umbel.tools.quantize.mixtures import Choice
from umbel.tools.quantize.output import size

PLAIN = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
PIECE = 1 << 18  # values
MAX_F16 = 65504  # of a float16, which most blocks have as their scale

Job: TypeAlias = Callable[[], Any]  # gives the bytes to write


def encoder(dtypes: Iterable[DType]) -> Callable[[np.ndarray, DType], np.ndarray]:
    """What turns float32 rows into those of a type; an error where `libgguf` is missing."""
    others = sorted({dtype for dtype in dtypes if dtype.name not in PLAIN}, key=str)
    if not others:
        return quantise
    try:
        library: Any = importlib.import_module("libgguf")
    except ImportError as error:
        msg = f"to write {', '.join(map(str, others))} needs the extra [quantize]"
        do = "pip install 'umbel-core[quantize]', or take one of Q8_0, Q5_1, Q5_0, Q4_1, Q4_0"
        raise OptionError(msg, got=str(error), do=do) from error
    for dtype in others:  # makes its tables, which it does not do safely in several threads
        library.quantize_rows(np.zeros((1, dtype.block), np.float32), dtype.number)

    def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
        if dtype.name in PLAIN:
            return quantise(values, dtype)
        return np.asarray(library.quantize_rows(values, dtype.number))

    return encode


def jobs(
    file: GGUFFile, choices: list[Choice], encode: Callable[[np.ndarray, DType], np.ndarray]
) -> Iterator[Job]:
    """One for each piece of what follows the header, in its order."""
    for choice in choices:
        raw = file.array(choice.tensor.name)
        if choice.dtype == choice.tensor.dtype or not raw.size:
            yield partial(np.ascontiguousarray, raw)
        else:
            rows = raw.reshape(-1, raw.shape[-1])
            step = max(PIECE // choice.tensor.shape[-1], 1)
            for start in range(0, len(rows), step):
                yield partial(_convert, file, choice, rows[start : start + step], encode)
        yield partial(padding, size(choice), file.alignment)


def _convert(
    file: GGUFFile,
    choice: Choice,
    raw: np.ndarray,
    encode: Callable[[np.ndarray, DType], np.ndarray],
) -> np.ndarray:
    old, new = choice.tensor.dtype, choice.dtype
    values = dequantise(raw, old)
    largest = max(-values.min(), values.max())
    if not np.isfinite(largest):
        check(choice.tensor.name, file.array(choice.tensor.name), old, file.path)  # raises
    made = encode(values, new)
    if largest > MAX_F16 and not np.isfinite(dequantise(made, new)).all():
        msg = f"the tensor {choice.tensor.name!r} holds values too large for {new}"
        do = "take BF16 or F32"
        raise UnsupportedModelError(msg, where=file.path, got=float(largest), do=do)
    return made
