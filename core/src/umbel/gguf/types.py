"""The data types of tensors, named and numbered as GGUF does, and their values.

A raw array is what `GGUFFile.array` gives: typed where NumPy knows the type, else byte rows.

The `gguf` package is the source of the numbers and does the work. Importing all of it may cost
a quarter of a second, so at first only its module of constants is loaded: a hundredth. A type
that it cannot decode or write, or that a newer one adds, is refused by name, never guessed.
"""

import math
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

import attrs
import numpy as np
from attrs.converters import optional

from umbel.errors import DeviceError, GraphError, ModelFormatError, UnsupportedModelError


@attrs.frozen(eq=False)
class DType:
    """How the numbers of a tensor are stored: `block` values share `block_bytes` bytes.

    There is one object for each type, so that they are compared and hashed quickly.
    """

    name: str
    number: int
    block: int
    block_bytes: int
    # None where NumPy cannot read it: bf16 and quantised types
    numpy: np.dtype | None = attrs.field(default=None, converter=optional(np.dtype))

    @property
    def quantised(self) -> bool:
        return self.block > 1

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` values; a `GraphError` where blocks do not divide the row."""
        if n % self.block:
            msg = f"a row of {n} values cannot be stored as {self.name}"
            raise GraphError(msg, expected=f"a multiple of {self.block}", got=n)
        return n // self.block * self.block_bytes

    def __repr__(self) -> str:
        return self.name


def _constants() -> Any:
    """The package's module of constants, without the package."""
    package: Any = find_spec("gguf")
    spec: Any = PathFinder.find_spec("gguf.constants", package.submodule_search_locations)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_NUMPY = {"f16": "<f2", "f32": "<f4", "f64": "<f8"}
_NUMPY |= {"i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}

BY_NAME: dict[str, DType] = {}
for _kind, (_block, _bytes) in _constants().GGML_QUANT_SIZES.items():
    _name = _kind.name.lower()
    BY_NAME[_name] = DType(_name, int(_kind), _block, _bytes, _NUMPY.get(_name))
BY_NUMBER = {dtype.number: dtype for dtype in BY_NAME.values()}

F32, F16, BF16, I32 = BY_NAME["f32"], BY_NAME["f16"], BY_NAME["bf16"], BY_NAME["i32"]
Q8_0 = BY_NAME["q8_0"]

# Every gguf that we take decodes all up to nvfp4; q8_1 and q8_k only occur inside kernels.
_KNOWN = {d.name for d in BY_NAME.values() if d.number <= BY_NAME["nvfp4"].number}
DECODABLE = _KNOWN - {"q8_1", "q8_k"}
_CHECKED_AT_ONCE = 1 << 18  # values; decoding them takes some ten times their bytes


def dequantise(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The values of a raw array as float32, with the same leading axes."""
    if dtype.name not in DECODABLE:
        msg = f"nothing here can decode the type {dtype.name}"
        raise UnsupportedModelError(msg, expected=", ".join(sorted(DECODABLE)), got=dtype.name)
    # What is not finite stays so without a warning: `check` and the sampler tell.
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

        return np.asarray(quants.dequantize(raw, GGMLQuantizationType(dtype.number)))


def quantise(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 values as the raw array of a type that can be written; rows are the last axis."""
    if not values.shape[-1]:
        return np.empty(values.shape, np.uint8)  # rows of nothing, which the package refuses
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        try:
            return np.asarray(quants.quantize(values, GGMLQuantizationType(dtype.number)))
        except NotImplementedError as error:
            msg, do = f"nothing here can write the type {dtype.name}", "take f16, bf16 or q8_0"
            raise UnsupportedModelError(msg, got=dtype.name, do=do) from error


def convert(raw: np.ndarray, dtype: DType, wanted: DType) -> np.ndarray:
    """A raw array as one of another type, in pieces, so that a large one needs little memory.

    A `DeviceError` where a finite value becomes infinite.
    """
    if dtype is wanted:
        return raw
    rows = raw.reshape(math.prod(raw.shape[:-1]), raw.shape[-1])
    parts = []
    for some in np.array_split(rows, 1 + raw.size // _CHECKED_AT_ONCE):
        values = dequantise(some, dtype)
        parts.append(quantise(values, wanted))
        finite = np.isfinite(values)
        if not np.isfinite(dequantise(parts[-1], wanted))[finite].all():
            msg, most = f"a value is too large for {wanted}", np.abs(values[finite]).max()
            raise DeviceError(msg, got=float(most), do="choose another device")
    return np.concatenate(parts).reshape(*raw.shape[:-1], parts[0].shape[-1])


def check(name: str, raw: np.ndarray, dtype: DType, where: object = None) -> None:
    """Raise `ModelFormatError`, naming tensor and block, where a value is not finite.

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
            bad = start + int(good.argmin())
            msg = f"the tensor {name!r} holds a value that is not finite"
            got = f"block {bad} (values from {bad * dtype.block} on, {dtype.name})"
            do = "fetch the file again, or convert the model again"
            raise ModelFormatError(msg, where=where, expected="finite values", got=got, do=do)
