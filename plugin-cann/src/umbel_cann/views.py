"""What operators are given: windows on device memory, scalars, lists; their descriptors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs
import numpy as np
from umbel.gguf.types import DType
from umbel.graph import Tensor

from umbel_cann.acl import Acl

FLOAT, FLOAT16, INT8, INT32, INT64, INT4 = 0, 1, 2, 3, 9, 29  # aclDataType
TYPES = {"f32": FLOAT, "f16": FLOAT16, "i32": INT32}
NAMES = {number: name for name, number in TYPES.items()}
BOOL = 12  # of masks, in scratch memory
BYTES = {FLOAT: 4, FLOAT16: 2, INT8: 1, INT32: 4, INT64: 8, BOOL: 1}
ND = 2  # aclFormat: no layout but the strides
NCL = 47  # images, channels, length: what a convolution of one axis asks for
KEEP, DOWN = 0, 1  # cubeMathType: compute as the operands are; float32 in float16

Ints: TypeAlias = tuple[int, ...]


class Unsupported(Exception):  # noqa: N818  an answer
    """Why a node cannot be computed."""


@attrs.frozen
class View:
    """A window on memory: strides and offset count elements, as the vendor's do."""

    type: int
    shape: Ints
    strides: Ints
    address: int  # of the storage
    offset: int = 0
    elements: int = 0  # of the storage
    format: int = ND

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dense(self) -> bool:
        """Without gaps, in its own order."""
        expected = contiguous(self.shape)
        triples = zip(self.shape, self.strides, expected, strict=True)
        return all(n == 1 or s == e for n, s, e in triples)

    @property
    def start(self) -> int:
        """The address of the first value."""
        return self.address + self.offset * BYTES[self.type]

    def meets(self, other: View) -> bool:
        """Whether they may share memory."""
        return self.start < other.end and other.start < self.end

    @property
    def end(self) -> int:
        """Behind the last value."""
        pairs = zip(self.shape, self.strides, strict=True)
        return self.start + (1 + sum((n - 1) * s for n, s in pairs)) * BYTES[self.type]

    def reshaped(self, *shape: int) -> View:
        """The same values of a dense window."""
        return attrs.evolve(self, shape=shape, strides=contiguous(shape))

    def spread(self, axis: int) -> View:
        """One more axis, of one value, before that one."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], self.strides[axis], *self.strides[axis:])
        return attrs.evolve(self, shape=shape, strides=strides)

    def turned(self) -> View:
        """The last two axes exchanged."""
        return attrs.evolve(self, shape=_turned(self.shape), strides=_turned(self.strides))

    def permuted(self, *axes: int) -> View:
        shape, strides = (tuple(v[a] for a in axes) for v in (self.shape, self.strides))
        return attrs.evolve(self, shape=shape, strides=strides)

    def part(self, axis: int, start: int, stop: int) -> View:
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return attrs.evolve(self, shape=shape, offset=self.offset + start * self.strides[axis])


@attrs.frozen
class Scalar:
    """A number that the device gets as float32, or as int32."""

    value: float
    type: int = FLOAT


@attrs.frozen
class Numbers:
    """An aclIntArray."""

    values: Ints


@attrs.frozen
class Views:
    """An aclTensorList."""

    views: tuple[View, ...]


ONE = Scalar(1.0)
Argument: TypeAlias = "View | Scalar | Numbers | Views | int | float | bool | bytes | None"


def contiguous(shape: Ints) -> Ints:
    """Strides of a tensor without gaps."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def type_of(dtype: DType) -> int:
    if dtype.name not in TYPES:
        msg = f"it has no {dtype}"
        raise Unsupported(msg)
    return TYPES[dtype.name]


def window(t: Tensor, address: int) -> View:
    """A tensor whose storage is at `address`."""
    number = type_of(t.dtype)
    size = BYTES[number]
    strides = tuple(s // size for s in t.strides)
    whole = t.storage.nbytes // size
    return View(number, t.shape, strides, address, t.offset // size, whole)


def like(t: Tensor, whole: View) -> View:
    """A tensor whose storage is there in another form, of another dtype perhaps."""
    size = BYTES[type_of(t.dtype)]
    strides, offset = tuple(s // size for s in t.strides), whole.offset + t.offset // size
    return attrs.evolve(whole, shape=t.shape, strides=strides, offset=offset)


@attrs.frozen(eq=False)
class Descriptors:
    """The vendor's objects for some arguments, given back by `drop`."""

    acl: Acl
    _made: list[tuple[str, int]] = attrs.field(factory=list, init=False)

    def of(self, arguments: tuple[Argument, ...]) -> Iterator[Any]:
        for argument in arguments:
            yield self.one(argument)

    def one(self, argument: Argument) -> Any:
        if isinstance(argument, View):
            return self._note("Tensor", self._tensor(argument))
        if isinstance(argument, Scalar):
            whole = argument.type == INT32
            given = argument.value
            value = ctypes.c_int32(int(given)) if whole else ctypes.c_float(given)
            made = self.acl.made("aclCreateScalar", ctypes.byref(value), argument.type)
            return self._note("Scalar", made)
        if isinstance(argument, Numbers):
            values = np.array(argument.values, np.int64)
            made = self.acl.made("aclCreateIntArray", values.ctypes.data, len(values))
            return self._note("IntArray", made)
        if isinstance(argument, Views):
            members = np.array([self._tensor(v) for v in argument.views], np.uint64)
            made = self.acl.made("aclCreateTensorList", members.ctypes.data, len(members))
            return self._note("TensorList", made)  # whose members go with it
        return argument

    def _tensor(self, view: View) -> int:
        # one array for shape, strides and storage: a call of NumPy costs as much as one of C
        rank = len(view.shape)
        numbers = np.array((*view.shape, *view.strides, view.elements), np.int64)
        at = numbers.ctypes.data
        stride, storage = at + 8 * rank, at + 16 * rank
        described = (view.offset, view.format, storage, 1, view.address)
        return self.acl.made("aclCreateTensor", at, rank, view.type, stride, *described)

    def _note(self, kind: str, handle: int) -> int:
        self._made.append((kind, handle))
        return handle

    def drop(self) -> None:
        while self._made:
            kind, handle = self._made.pop()
            self.acl.function(f"aclDestroy{kind}")(handle)


def _turned(values: Ints) -> Ints:
    return (*values[:-2], values[-1], values[-2])
