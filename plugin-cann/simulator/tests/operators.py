"""Operators as tests call them: NumPy arrays become tensors in device memory, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char_p, c_double, c_int64, c_uint64, c_void_p
from typing import Any

import ml_dtypes
import numpy as np
import umbel_cann_simulator
from numpy.typing import NDArray
from simulated import Acl

Array = NDArray[Any]

DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
}
NUMBERS = {
    DTYPES[name]: number
    for name, number in zip(DTYPES, (0, 1, 27, 2, 4, 6, 3, 9, 11, 12), strict=True)
}
INT4 = 29
ND, FRACTAL_NZ, NCHW, NCL = 2, 29, 0, 47
PRECISION = {"f32": 2e-6, "f16": 2**-10, "bf16": 2**-7}  # twice the rounding


class Tensor:
    """A tensor of the device; `array` is where the host's copy of its memory is."""

    def __init__(self, handle: int, at: int, array: Array, memory: Array) -> None:
        self.handle, self.at, self.array, self.memory = handle, at, array, memory


class Handle:
    """A scalar, an array or a list."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class Operators:
    """The operators of a started simulator."""

    def __init__(self, acl: Acl) -> None:
        folder = umbel_cann_simulator.toolkit() / "lib64"
        self.acl = acl.start()
        self.base = ctypes.CDLL(str(folder / "libnnopbase.so"))
        self.api = ctypes.CDLL(str(folder / "libopapi.so"))
        for name in ("Tensor", "Scalar", "IntArray", "TensorList"):
            getattr(self.base, f"aclCreate{name}").restype = c_void_p
        self.workspaces: list[int] = []

    # what operators are given

    def tensor(
        self, array: Array, *, number: int | None = None, form: int = ND, at: int | None = None
    ) -> Tensor:
        """As it lies in memory: a view is described as one, with what it is a view of."""
        memory = array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        if not memory.flags.c_contiguous:
            memory = array = np.ascontiguousarray(array)
        address = self.acl.malloc(max(1, memory.nbytes)) if at is None else at
        if at is None:
            self.acl.upload(address, memory.tobytes())
        number = NUMBERS[array.dtype] if number is None else number
        start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        strides = [s // array.itemsize for s in array.strides]
        handle = self.describe(
            array.shape, number, strides, start // array.itemsize, form, [memory.size], address
        )
        return Tensor(handle, address, array, memory)

    def describe(
        self,
        shape: Sequence[int],
        number: int,
        strides: Sequence[int] | None,
        offset: int,
        form: int,
        storage: Sequence[int],
        address: int,
    ) -> int:
        step = None if strides is None else longs(strides)
        handle: int = self.base.aclCreateTensor(
            longs(shape),
            c_uint64(len(shape)),
            number,
            step,
            c_int64(offset),
            form,
            longs(storage),
            c_uint64(len(storage)),
            c_void_p(address),
        )
        return handle

    def empty(self, shape: Sequence[int], dtype: str, form: int = ND) -> Tensor:
        """Filled with what no operator writes."""
        return self.tensor(np.full(shape, 77, DTYPES[dtype]), form=form)

    def scalar(self, value: float, dtype: str = "f32") -> Handle:
        place = np.array([value], DTYPES[dtype])
        make = self.base.aclCreateScalar
        return Handle(make(c_void_p(place.ctypes.data), NUMBERS[place.dtype]))

    def ints(self, *values: int) -> Handle:
        return Handle(self.base.aclCreateIntArray(longs(values), c_uint64(len(values))))

    def tensors(self, *members: Tensor) -> Handle:
        handles = (c_void_p * len(members))(*(m.handle for m in members))
        return Handle(self.base.aclCreateTensorList(handles, c_uint64(len(members))))

    # calls

    def first(self, name: str, *arguments: Any) -> tuple[int, int, int]:
        """Phase 1: the code, the size of the workspace, the executor."""
        size, executor = c_uint64(), c_void_p()
        phase = getattr(self.api, f"aclnn{name}GetWorkspaceSize")
        code = phase(*map(passed, arguments), byref(size), byref(executor))
        return code, size.value, executor.value or 0

    def second(self, name: str, size: int, executor: int, workspace: int = 0) -> int:
        if size and not workspace:
            workspace = self.acl.malloc(size)
        phase = getattr(self.api, f"aclnn{name}")
        code: int = phase(c_void_p(workspace), c_uint64(size), c_void_p(executor), None)
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """Both phases and the wait for it."""
        code, size, executor = self.first(name, *arguments)
        assert code == 0, f"{name}: {code}: {self.acl.message()}"
        assert self.second(name, size, executor) == 0, self.acl.message()
        self.acl.ok("aclrtSynchronizeStream", None)

    def refused(self, name: str, *arguments: Any) -> int:
        """The code of a phase 1 that has to fail."""
        code, _, executor = self.first(name, *arguments)
        assert code, f"{name} was not refused"
        assert executor == 0
        assert name in self.acl.message()
        return code

    def read(self, tensor: Tensor) -> Array:
        """What the tensor's view shows now."""
        memory, array = tensor.memory, tensor.array
        raw = self.acl.read(tensor.at, max(1, memory.nbytes))
        start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        shown: Array = np.ndarray(array.shape, array.dtype, raw, start, array.strides)
        return shown

    def run(self, name: str, shape: Sequence[int], dtype: str, *arguments: Any) -> Array:
        """What an operator writes that ends with its output."""
        out = self.empty(shape, dtype)
        self.call(name, *arguments, out)
        return self.read(out)


def longs(values: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(values))(*values)


def passed(value: Any) -> Any:
    """As C takes it."""
    if isinstance(value, Tensor | Handle):
        return c_void_p(value.handle)
    if value is None:
        return c_void_p()
    if isinstance(value, bool):
        return c_bool(value)
    if isinstance(value, float):
        return c_double(value)
    if isinstance(value, int):
        return c_int64(value)
    return c_char_p(value.encode()) if isinstance(value, str) else value


RNG = np.random.default_rng(5)


def some(shape: Sequence[int], dtype: str = "f32", low: float = -2, high: float = 2) -> Array:
    """Values that the dtype holds exactly."""
    values = RNG.uniform(low, high, tuple(shape))
    if dtype in PRECISION or dtype == "f64":
        return values.astype(DTYPES[dtype])
    return np.round(values * 5).astype(DTYPES[dtype])


def close(got: Array, want: Array, dtype: str, scale: float = 1, what: str = "") -> None:
    """Up to the rounding of `dtype`, times `scale`."""
    assert got.shape == want.shape, what
    a, b = got.astype(np.float64), want.astype(np.float64)
    if dtype not in PRECISION:
        np.testing.assert_array_equal(a, b, what)
        return
    limit = PRECISION[dtype] * scale
    np.testing.assert_allclose(a, b, rtol=limit, atol=limit, err_msg=what)
