"""A MIL program built once more by coremltools, which checks every type on the way.

coremltools also computes what follows from constants alone, on any system: `evaluate` builds
the program with its inputs as constants. It cannot compute convolutions; those of one by one
are built as products for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from umbel_ane.coreml import CoremlError, tools
from umbel_ane.mil.blob import reader
from umbel_ane.mil.literals import KINDS
from umbel_ane.mil.program import (
    Argument,
    Blob,
    Function,
    Literal,
    Program,
    Statement,
    Type,
)

Files = Mapping[str, bytes | bytearray | memoryview]

_STRING = {"str": "string"}  # types that coremltools names otherwise


def build(program: Program, weights: Files) -> Any:
    """coremltools' own program: every result has the type that the text declares."""
    mil, mb, types, opset = _modules()
    main = program.main
    inputs = {
        value.name: mb.placeholder(
            _shape(value.type), dtype=types.string_to_builtin(value.type.dtype)
        )
        for value in main.inputs
    }
    with mil.Function(inputs, opset) as function:
        builder = _Builder(main, weights, evaluating=False)
        results = builder.run(dict(function.inputs))
        function.set_outputs([builder.output(name, results) for name in main.outputs])
    made = mil.Program()
    made.add_function("main", function)
    return made


def evaluate(
    program: Program, weights: Files, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of a program, computed by coremltools in the types that the text declares."""
    mil, _, _, opset = _modules()
    main = program.main
    for value in main.inputs:
        given = inputs.get(value.name)
        kind = KINDS[value.type.dtype].numpy
        if given is None or given.dtype != kind or given.shape != _shape(value.type):
            got = "none" if given is None else f"{given.dtype} {list(given.shape)}"
            msg = "an input is missing or has another type"
            raise CoremlError(msg, where=value.name, expected=value.type, got=got)
    with mil.Function({}, opset):
        results = _Builder(main, weights, evaluating=True).run(dict(inputs))
    return {name: results[name] for name in main.outputs}


class _Builder:
    """Calls coremltools' builder for each statement; within a program that it builds."""

    def __init__(self, function: Function, weights: Files, *, evaluating: bool) -> None:
        self.function = function
        self.read = reader(weights)
        self.evaluating = evaluating
        _, self.mb, self.types, _ = _modules()

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        for statement in self.function.statements:
            for result, made in zip(
                statement.results, self.statement(statement, values), strict=True
            ):
                values[result.name] = made
        return values

    def statement(self, statement: Statement, values: Mapping[str, Any]) -> tuple[Any, ...]:
        args = {k: self.argument(a, values, statement) for k, a in statement.args.items()}
        given = {k: self.literal(v) for k, v in statement.attributes.items() if k != "name"}
        if statement.op == "const":
            return ({**args, **given}["val"],)
        made = self.called(statement, {**args, **given})
        if len(made) != len(statement.results):
            msg = "an operation has another number of results"
            raise self.error(statement, msg, expected=len(made), got=len(statement.results))
        for value, result in zip(made, statement.results, strict=True):
            kind = self.type(value)
            if (kind.dtype, kind.dims or ()) != (result.type.dtype, result.type.dims or ()):
                msg = "a result has another type than the text declares"
                raise self.error(statement, msg, expected=kind, got=result.type)
            if not self.evaluating:
                value.name = result.name
        return tuple(self.value(v, statement) for v in made) if self.evaluating else made

    def called(self, statement: Statement, args: dict[str, Any]) -> tuple[Any, ...]:
        own = self.pointwise if statement.op == "conv" and self.evaluating else None
        call = own or getattr(self.mb, statement.op, None)
        if call is None:
            raise self.error(statement, "coremltools has no such operation")
        try:
            made = call(**args) if own else call(**args, name=statement.name)
        except Exception as error:  # whatever a wrong argument leads to
            msg = "coremltools does not take an operation"
            raise self.error(statement, msg, got=_first_line(error)) from error
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    def pointwise(self, x: Any, weight: Any, bias: Any = None, **how: Any) -> Any:
        """A convolution as a product: only of one by one, with the usual settings."""
        out, channels, *kernel = weight.shape
        ones = all(int(np.max(how.get(k, 1))) == 1 for k in ("strides", "dilations", "groups"))
        if any(k != 1 for k in kernel) or not ones or np.any(how.get("pad", 0)):
            msg = "a convolution that is not 1x1 has no value here"
            raise ValueError(msg)
        batch, _, height, width = x.shape
        flat = self.mb.reshape(x=x, shape=[batch, channels, height * width])
        made = self.mb.matmul(x=np.reshape(weight, (out, channels)), y=flat)
        if bias is not None:
            made = self.mb.add(x=made, y=np.reshape(bias, (out, 1)))
        return self.mb.reshape(x=made, shape=[batch, out, height, width])

    def argument(
        self, argument: Argument, values: Mapping[str, Any], statement: Statement
    ) -> Any:
        if isinstance(argument, tuple):
            return tuple(self.argument(part, values, statement) for part in argument)
        if isinstance(argument, Literal):
            return self.literal(argument)
        if argument.name not in values:
            msg = "a name is not defined"
            raise self.error(statement, msg, got=argument.name)
        return values[argument.name]

    def literal(self, literal: Literal) -> Any:
        kind = literal.type
        if isinstance(literal.data, Blob):
            values = self.read(literal.data, kind)
        elif kind.dims is None and kind.dtype in ("string", "bool"):
            return literal.data
        else:
            values = np.asarray(literal.data).astype(KINDS[kind.dtype].numpy)
        if KINDS[kind.dtype].bits < 8:
            builtin = self.types.string_to_builtin(kind.dtype)
            values = values.astype(self.types.nptype_from_builtin(builtin))
        return values if kind.dims else values.reshape(-1)[0]

    def value(self, made: Any, statement: Statement) -> np.ndarray:
        """What was computed; of a compressed constant, what it stands for."""
        found = made.val
        if found is None and statement.op.startswith("constexpr_"):
            found = made.op.materialized_val_inference()
        if found is None:
            raise self.error(statement, "coremltools cannot compute an operation here")
        return np.asarray(found)

    def output(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value of an output, which must be what an operation gives."""
        made = {r.name for s in self.function.statements if s.op != "const" for r in s.results}
        if name not in made:
            msg = "an output of a program is not the result of an operation"
            raise CoremlError(msg, where=self.function.name, got=name)
        return values[name]

    def type(self, made: Any) -> Type:
        name = self.types.builtin_to_string(made.dtype)
        return Type(_STRING.get(name, name), tuple(map(int, made.shape)) or None)

    def error(
        self, statement: Statement, what: str, *, expected: object = None, got: object = None
    ) -> CoremlError:
        line = f"line {statement.line}, " if statement.line else ""
        where = f"{line}{statement.name} = {statement.op}(...)"
        return CoremlError(what, where=where, expected=expected, got=got)


def _modules() -> tuple[Any, Any, Any, Any]:
    """Programs, the builder, types, the opset."""
    ct = tools()
    mil = import_module("coremltools.converters.mil.mil")
    return mil, mil.Builder, mil.types, ct.target.iOS18


def _shape(kind: Type) -> tuple[int, ...]:
    if None in (kind.dims or ()):
        msg = "an input has a dimension without a size"
        raise CoremlError(msg, expected="a static shape", got=kind)
    return tuple(d for d in kind.dims or () if d is not None)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]
