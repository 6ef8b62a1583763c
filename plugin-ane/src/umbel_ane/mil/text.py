"""A program as text: `write` in the dialect of its version, `summary` for people.

What is written is read back by `parse` as the same program, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from umbel_ane.mil.literals import KINDS, quoted, written
from umbel_ane.mil.program import (
    Argument,
    Blob,
    Function,
    Literal,
    Nested,
    Program,
    Ref,
    Statement,
    Type,
    Value,
)

OLDER = ("1.0",)  # versions that write a scalar as a tensor without axes
_STRING = Type("string")


def write(program: Program, floats: str = "hex") -> str:
    """The text of a program; floats are "hex", as Apple prints them, or "decimal".

    A statement that has no attribute `name` is named after its first result.
    """
    return "".join(_Writer(program.version in OLDER, floats).program(program))


def summary(program: Program) -> str:
    """Inputs, outputs, operations and weights of a program, a line each."""
    lines = [f"program({program.version})"]
    lines += [f"  {key}: {quoted(value)}" for key, value in program.build_info.items()]
    for function in program.functions:
        lines += _summary(function)
    return "\n".join(lines)


class _Writer:
    def __init__(self, older: bool, floats: str) -> None:
        self.older = older
        self.floats = floats

    def program(self, program: Program) -> Iterator[str]:
        yield f"program({program.version})\n"
        if program.build_info:
            string = self.type(_STRING)
            pairs = self.nested(dict(program.build_info))
            yield f"[buildInfo = dict<{string}, {string}>({pairs})]\n"
        yield "{\n"
        for function in program.functions:
            yield from self.function(function)
        yield "}\n"

    def function(self, function: Function) -> Iterator[str]:
        inputs = ", ".join(map(self.value, function.inputs))
        attributes = self.attributes(function.attributes)
        yield f"    func {function.name}<{function.opset}>({inputs}){attributes} {{\n"
        for statement in function.statements:
            yield f"        {self.statement(statement)}\n"
        yield f"    }} -> ({', '.join(function.outputs)});\n"

    def statement(self, statement: Statement) -> str:
        results = ", ".join(map(self.value, statement.results))
        args = ", ".join(f"{key} = {self.argument(a)}" for key, a in statement.args.items())
        named = {"name": Literal(_STRING, statement.name), **statement.attributes}
        attributes = self.attributes(named).lstrip()
        return f"{results} = {statement.op}({args}){attributes};"

    def value(self, value: Value) -> str:
        return f"{self.type(value.type)} {value.name}"

    def type(self, kind: Type) -> str:
        return f"tensor<{kind.dtype}, []>" if self.older and kind.dims is None else str(kind)

    def argument(self, argument: Argument) -> str:
        if isinstance(argument, tuple):
            return f"({', '.join(map(self.argument, argument))})"
        return argument.name if isinstance(argument, Ref) else self.literal(argument)

    def attributes(self, given: Mapping[str, Literal | Nested]) -> str:
        if not given:
            return ""
        return f" [{', '.join(f'{k} = {self.attribute(v)}' for k, v in given.items())}]"

    def attribute(self, given: Literal | Nested) -> str:
        if isinstance(given, Literal):
            return self.literal(given)
        return f"{given.type}({'' if given.data is None else self.nested(given.data)})"

    def literal(self, literal: Literal) -> str:
        kind, data = literal.type, literal.data
        if isinstance(data, Blob):
            path = self.literal(Literal(_STRING, data.path))
            offset = self.literal(Literal(Type("uint64"), data.offset))
            text = f"BLOBFILE(path = {path}, offset = {offset})"
        elif kind.dims is None:
            value = data.item() if isinstance(data, np.ndarray) else data
            text = written(value, kind.dtype, self.floats)
        else:
            text = self.tensor(np.asarray(data).reshape(kind.dims), kind.dtype)
        return f"{self.type(kind)}({text})"

    def tensor(self, values: np.ndarray, dtype: str) -> str:
        if values.ndim > 1:
            parts: Iterable[str] = (self.tensor(row, dtype) for row in values)
        else:
            parts = (written(value, dtype, self.floats) for value in values.tolist())
        return f"[{', '.join(parts)}]"

    def nested(self, data: object) -> str:
        if isinstance(data, dict):
            pairs = (f"{{{quoted(str(k))}, {self.nested(v)}}}" for k, v in data.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(data, (tuple, list)):
            inner = ", ".join(map(self.nested, data))
            return f"({inner})" if isinstance(data, tuple) else f"[{inner}]"
        if isinstance(data, str):
            return quoted(data)
        dtype = {bool: "bool", int: "int64", float: "fp64"}[type(data)]
        return written(data, dtype, self.floats)  # type: ignore[arg-type]


# -- what there is to say of a program


def _summary(function: Function) -> Iterator[str]:
    types = function.types()
    yield f"{function.name}<{function.opset}>"
    yield "  inputs"
    yield from (f"    {value.name}: {value.type}" for value in function.inputs)
    yield "  outputs"
    yield from (f"    {name}: {types.get(name, 'not defined')}" for name in function.outputs)
    counted = Counter(s.op for s in function.statements)
    constants = counted.pop("const", 0)
    yield f"  operations: {counted.total()}, and {constants} constants"
    yield from (f"    {op}: {n}" for op, n in sorted(counted.items(), key=lambda o: (-o[1], o)))
    files = _weights(function)
    yield f"  weights: {sum(sum(sizes) for sizes in files.values()):,} bytes"
    for path, sizes in sorted(files.items()):
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in path)
        yield f"    {shown}: {sum(sizes):,} bytes in {len(sizes)}"


def _weights(function: Function) -> dict[str, list[int]]:
    """The sizes of what is read from each file; what is read twice counts once."""
    seen: dict[Blob, int] = {}
    for literal in _literals(function):
        if isinstance(literal.data, Blob):
            seen[literal.data] = weight_bytes(literal.type)
    files: dict[str, list[int]] = {}
    for blob, size in seen.items():
        files.setdefault(blob.path, []).append(size)
    return files


def weight_paths(program: Program) -> list[str]:
    """The weight files that a program reads, by their paths in its text."""
    return sorted({path for function in program.functions for path in _weights(function)})


def weight_bytes(kind: Type) -> int:
    """Bytes of a weight of that type in its file."""
    known = KINDS.get(kind.dtype)
    bits = known.bits if known else {"bf16": 16}.get(kind.dtype, 8)
    return (kind.size * bits + 7) // 8


def _literals(function: Function) -> Iterator[Literal]:
    for statement in function.statements:
        for argument in [*statement.args.values(), *statement.attributes.values()]:
            parts = argument if isinstance(argument, tuple) else (argument,)
            yield from (part for part in parts if isinstance(part, Literal))
