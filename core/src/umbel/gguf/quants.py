"""Number formats: raw rows to float32 and back (by the `gguf` package), and a check of values.

A raw array is what `GGUFFile.array` gives: typed where NumPy knows the type, else byte rows.
The sets say what the package can do; a type in neither is refused by name, never guessed.
"""

from __future__ import annotations

import numpy as np

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.gguf.types import BY_NAME, DType

# q8_1 and q8_k only occur inside kernels; nothing decodes q1_0.
DECODABLE = frozenset(BY_NAME) - {"q8_1", "q8_k", "q1_0"}
ENCODABLE = frozenset(
    ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4")
)
_CHECKED_AT_ONCE = 1 << 18  # values; decoding them takes some ten times their bytes


def dequantise(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The values of a raw array as float32, with the same leading axes."""
    if dtype.name not in DECODABLE:
        msg = f"nothing here can decode the type {dtype.name}"
        raise UnsupportedModelError(msg, expected=", ".join(sorted(DECODABLE)), got=dtype.name)
    # What is not finite stays so without a warning: `first_bad_block` and the sampler tell.
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.numpy is not None:
            return raw.astype(np.float32, copy=False)
        if dtype.name == "bf16":  # the package needs three times as long
            bits = np.ascontiguousarray(raw).view("<u2").astype(np.uint32)
            bits <<= 16
            return bits.view(np.float32)
        if not raw.size:
            row = raw.shape[-1] // dtype.block_bytes * dtype.block
            return np.empty((*raw.shape[:-1], row), np.float32)
        from gguf import GGMLQuantizationType, quants  # costs a quarter of a second

        values: np.ndarray = quants.dequantize(raw, GGMLQuantizationType(dtype.number))
        return values


def quantise(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 values as the raw array of a type that can be written; rows are the last axis."""
    if dtype.name not in ENCODABLE:
        msg = f"nothing here can write the type {dtype.name}"
        raise UnsupportedModelError(msg, expected=", ".join(sorted(ENCODABLE)), got=dtype.name)
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        raw: np.ndarray = quants.quantize(values, GGMLQuantizationType(dtype.number))
    return raw


def first_bad_block(raw: np.ndarray, dtype: DType) -> int | None:
    """The index of the first block that holds a value that is not finite (as float32), if any.

    Blocks are counted through the whole tensor; where values are stored singly each is a block.
    The tensor is decoded in pieces, so that a large one needs little memory.
    """
    flat = np.ascontiguousarray(raw).reshape(-1)
    unit = 1 if dtype.numpy is not None else dtype.block_bytes
    step = _CHECKED_AT_ONCE // dtype.block
    for start in range(0, flat.size // unit, step):
        values = dequantise(flat[start * unit : (start + step) * unit], dtype)
        good = np.isfinite(values).reshape(-1, dtype.block).all(axis=1)
        if not good.all():
            return start + int(good.argmin())
    return None


def check(name: str, raw: np.ndarray, dtype: DType, where: object = None) -> None:
    """Raise `ModelFormatError`, naming tensor and block, where a value is not finite."""
    bad = first_bad_block(raw, dtype)
    if bad is not None:
        msg = f"the tensor {name!r} holds a value that is not finite"
        got = f"block {bad} (values from {bad * dtype.block} on, {dtype.name})"
        do = "fetch the file again, or convert the model again"
        raise ModelFormatError(msg, where=where, expected="finite values", got=got, do=do)
