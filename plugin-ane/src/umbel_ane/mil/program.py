"""A MIL program as data: what its text says, and nothing that depends on how it is written.

The grammar is that of Apple's `model.mil` (Core ML's "MIL program", specification version 9),
in the two dialects that are seen: `program(1.0)` and `program(1.3)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs
import numpy as np

Dims = tuple[int | None, ...]  # None: a flexible dimension, `?`


@attrs.frozen
class Type:
    """The type of a value: of a scalar, or of a tensor with `dims`."""

    dtype: str  # fp16, fp32, int32, bool, string, uint64, uint8, uint4, ...
    dims: Dims | None = None  # None: a scalar

    @property
    def size(self) -> int:
        """Number of values; a flexible dimension is refused by ValueError."""
        if None in (self.dims or ()):
            msg = f"{self} has no one size"
            raise ValueError(msg)
        return math.prod(d for d in self.dims or () if d is not None)

    def __str__(self) -> str:
        if self.dims is None:
            return self.dtype
        sizes = ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"tensor<{self.dtype}, [{sizes}]>"


@attrs.frozen
class Value:
    """A name that is given a type: an input of a function, or a result of a statement."""

    name: str
    type: Type


@attrs.frozen
class Ref:
    """The value of that name."""

    name: str


@attrs.frozen
class Blob:
    """Values that lie in a weight file, at the offset of their metadata."""

    path: str  # begins with @model_path/
    offset: int


@attrs.frozen(eq=False)
class Literal:
    """Values that are written out: a scalar, or a tensor in C order."""

    type: Type
    data: bool | int | float | str | np.ndarray | Blob


@attrs.frozen
class Nested:
    """An attribute made of tuples, lists and dicts of plain values, as flexible shapes are."""

    type: str  # as it is written: dict<string, string>
    data: object


Argument: TypeAlias = Ref | Literal | tuple[Ref | Literal, ...]


@attrs.frozen(eq=False)
class Statement:
    """TYPE NAME, ... = OP(key = argument, ...)[name = ..., val = ...]"""

    op: str
    results: tuple[Value, ...]
    args: Mapping[str, Argument] = attrs.field(factory=dict)
    attributes: Mapping[str, Literal] = attrs.field(factory=dict)
    line: int = 0  # of the text, 1-based; 0: not from a text

    @property
    def name(self) -> str:
        return self.results[0].name

    def refs(self) -> Iterator[str]:
        """The names that it reads, in order."""
        for argument in self.args.values():
            parts = argument if isinstance(argument, tuple) else (argument,)
            yield from (part.name for part in parts if isinstance(part, Ref))


@attrs.frozen(eq=False)
class Function:
    name: str
    opset: str  # ios18
    inputs: tuple[Value, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Literal | Nested] = attrs.field(factory=dict)

    def types(self) -> dict[str, Type]:
        """The type of each name."""
        values = [*self.inputs, *(v for s in self.statements for v in s.results)]
        return {v.name: v.type for v in values}


@attrs.frozen(eq=False)
class Program:
    version: str  # 1.3
    functions: tuple[Function, ...]
    build_info: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def main(self) -> Function:
        """The function `main`, or the only one."""
        named = [f for f in self.functions if f.name == "main"]
        return (named or list(self.functions))[0]
