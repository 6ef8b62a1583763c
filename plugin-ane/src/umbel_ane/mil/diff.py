"""Two programs compared by what they mean.

Names, the order of independent statements, whether a constant is named or stands inline, how
a float is spelt, and the dialect with its opset say nothing; nor does what no output needs.
Inputs and outputs are told apart by their place among the sorted names, which is what binds
them.

Both programs are walked together from their outputs. Where two operations differ, what they are
made from is not looked at: one cause is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from umbel_ane.mil.literals import KINDS, rounded
from umbel_ane.mil.program import (
    Argument,
    Blob,
    Function,
    Literal,
    Program,
    Ref,
    Statement,
    Type,
)

ReadBlob: TypeAlias = Callable[[Blob, Type], np.ndarray]


@attrs.frozen
class Difference:
    """`where` names a value of the first program, and that of the second where it differs."""

    where: str
    what: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n  a: {self.a}\n  b: {self.b}"


def differences(
    a: Program,
    b: Program,
    read_a: ReadBlob | None = None,
    read_b: ReadBlob | None = None,
) -> list[Difference]:
    """What differs, in the order of the outputs; nothing: they mean the same.

    `read_a` and `read_b` give the values of weights. Without both, two weights of one type in
    files are taken for equal.
    """
    found: list[Difference] = []
    pairs, odd = _functions(a, b)
    for name, other in odd:
        found.append(Difference(f"function {name}", "is in one program only", *other))
    for one, two in pairs:
        found += _Walk(_Side(one, read_a), _Side(two, read_b)).all()
    return found


@attrs.frozen
class _Input:
    place: int  # among the sorted names


@attrs.frozen(eq=False)
class _Result:
    statement: Statement
    index: int


# What a value is: an input, a constant, a result; None: the name is not defined.
_Origin: TypeAlias = "_Input | Literal | _Result | None"


class _Side:
    """One of the two: where each name comes from."""

    def __init__(self, function: Function, read: ReadBlob | None) -> None:
        self.function = function
        self.read = read
        self.inputs = sorted(function.inputs, key=lambda v: v.name)
        self.outputs = sorted(function.outputs)
        self.types = function.types()
        self.origins: dict[str, _Origin] = {
            v.name: _Input(i) for i, v in enumerate(self.inputs)
        }
        for statement in function.statements:
            value = statement.attributes.get("val", statement.args.get("val"))
            for i, result in enumerate(statement.results):
                constant = statement.op == "const" and isinstance(value, Literal)
                self.origins[result.name] = value if constant else _Result(statement, i)  # type: ignore[assignment]

    def origin(self, part: Ref | Literal) -> _Origin:
        return part if isinstance(part, Literal) else self.origins.get(part.name)

    def arguments(self, statement: Statement) -> dict[str, Argument]:
        """Of an operation; `constexpr_` operations take theirs in the brackets behind."""
        more = {k: v for k, v in statement.attributes.items() if k not in ("name", "val")}
        return {**statement.args, **more}


class _Walk:
    def __init__(self, a: _Side, b: _Side) -> None:
        self.a = a
        self.b = b
        self.found: list[Difference] = []
        self.done: set[tuple[object, ...]] = set()
        self.todo: list[tuple[str, Ref | Literal, Ref | Literal]] = []

    def all(self) -> list[Difference]:
        self.inputs()
        told = [side.function.attributes for side in (self.a, self.b)]
        for key in sorted(told[0].keys() | told[1].keys()):
            said = [attributes.get(key) for attributes in told]
            if said[0] != said[1]:
                self.add(f"attribute {key}", "is another", *map(str, said))
        if len(self.a.outputs) != len(self.b.outputs):
            what = "another number of outputs"
            self.add("outputs", what, ", ".join(self.a.outputs), ", ".join(self.b.outputs))
            return self.found
        for i, (one, two) in enumerate(zip(self.a.outputs, self.b.outputs, strict=True)):
            self.todo = [(f"output {i}, {_both(one, two)}", Ref(one), Ref(two))]
            while self.todo:
                self.compare(*self.todo.pop())
        return self.found

    def inputs(self) -> None:
        one, two = self.a.inputs, self.b.inputs
        if len(one) != len(two):
            names = [", ".join(v.name for v in values) or "none" for values in (one, two)]
            self.add("inputs", "another number of inputs", *names)
            return
        for i, (x, y) in enumerate(zip(one, two, strict=True)):
            if not _same_type(x.type, y.type):
                where = f"input {i}, {_both(x.name, y.name)}"
                self.add(where, "another type", str(x.type), str(y.type))

    def compare(self, where: str, one: Ref | Literal, two: Ref | Literal) -> None:
        x, y = self.a.origin(one), self.b.origin(two)
        key = (id(x), id(y))
        if key in self.done:
            return
        self.done.add(key)
        if isinstance(x, _Input) and isinstance(y, _Input):
            if x != y:
                self.add(where, "another input", *self.told(one, two))
        elif isinstance(x, Literal) and isinstance(y, Literal):
            self.constants(where, x, y)
        elif isinstance(x, _Result) and isinstance(y, _Result):
            self.results(x, y)
        elif x is None and y is None:
            self.add(where, "is not defined", *self.told(one, two))
        else:
            self.add(where, "comes from something else", *self.told(one, two))

    def results(self, x: _Result, y: _Result) -> None:
        one, two = x.statement, y.statement
        where = _both(one.results[x.index].name, two.results[y.index].name)
        if one.op != two.op:
            self.add(where, "another operation", one.op, two.op)
            return
        types = [s.results[r.index].type for s, r in ((one, x), (two, y))]
        if not _same_type(*types):
            self.add(where, f"{one.op} gives another type", *map(str, types))
        if (x.index, len(one.results)) != (y.index, len(two.results)):
            told = [f"{r.index + 1} of {len(r.statement.results)}" for r in (x, y)]
            self.add(where, f"another result of {one.op}", *told)
            return
        self.arguments(f"{where}, {one.op}", one, two)

    def arguments(self, where: str, one: Statement, two: Statement) -> None:
        args, others = self.a.arguments(one), self.b.arguments(two)
        for key in sorted({*args, *others}, reverse=True):  # popped in order
            if key not in args or key not in others:
                told = ["given" if key in given else "not given" for given in (args, others)]
                self.add(f"{where}, {key}", "an argument of one only", *told)
                continue
            left, right = _parts(args[key]), _parts(others[key])
            if len(left) != len(right):
                told = [f"{len(parts)} values" for parts in (left, right)]
                self.add(f"{where}, {key}", "another number of values", *told)
                continue
            self.todo += reversed(
                [(f"{where}, {key}", p, q) for p, q in zip(left, right, strict=True)]
            )

    def constants(self, where: str, x: Literal, y: Literal) -> None:
        if not _same_type(x.type, y.type):
            self.add(where, "a constant of another type", str(x.type), str(y.type))
            return
        files = isinstance(x.data, Blob), isinstance(y.data, Blob)
        if files == (True, True) and (self.a.read is None or self.b.read is None):
            return
        left, right = _values(x, self.a.read), _values(y, self.b.read)
        if left is None or right is None:
            told = ["in a file" if file else "in the text" for file in files]
            self.add(where, "a constant that cannot be compared without its file", *told)
            return
        differ = _differ(left, right)
        if left.shape != right.shape:
            self.add(where, "another number of values", str(left.size), str(right.size))
        elif differ.any():
            i = int(differ.argmax())
            what = f"{int(differ.sum())} of {left.size} values differ, the first at {i}"
            self.add(where, what, str(left[i]), str(right[i]))

    def told(self, one: Ref | Literal, two: Ref | Literal) -> tuple[str, str]:
        return _told(self.a, one), _told(self.b, two)

    def add(self, where: str, what: str, a: str, b: str) -> None:
        self.found.append(Difference(where, what, a, b))


def _functions(
    a: Program, b: Program
) -> tuple[list[tuple[Function, Function]], list[tuple[str, tuple[str, str]]]]:
    """Functions of one name; the only ones of two programs, whatever they are called."""
    if len(a.functions) == len(b.functions) == 1:
        return [(a.functions[0], b.functions[0])], []
    one, two = ({f.name: f for f in p.functions} for p in (a, b))
    pairs = [(one[name], two[name]) for name in one if name in two]
    odd = [(n, ("there", "missing")) for n in one if n not in two]
    odd += [(n, ("missing", "there")) for n in two if n not in one]
    return pairs, odd


def _parts(argument: Argument) -> Sequence[Ref | Literal]:
    return argument if isinstance(argument, tuple) else (argument,)


def _both(one: str, two: str) -> str:
    return one if one == two else f"{one} ({two})"


def _told(side: _Side, part: Ref | Literal) -> str:
    origin = side.origin(part)
    if isinstance(origin, _Input):
        return f"input {origin.place}, {side.inputs[origin.place].name}"
    if isinstance(origin, Literal):
        return f"a constant, {origin.type}"
    name = part.name if isinstance(part, Ref) else ""
    return f"{name}, not defined" if origin is None else f"{name}, {origin.statement.op}"


def _same_type(a: Type, b: Type) -> bool:
    return a.dtype == b.dtype and (a.dims or ()) == (b.dims or ())


def _values(literal: Literal, read: ReadBlob | None) -> np.ndarray | None:
    """In one axis, as its type holds them; None: they lie in a file that is not there."""
    data = literal.data
    if isinstance(data, Blob):
        return None if read is None else np.ravel(read(data, literal.type))
    kind = KINDS[literal.type.dtype]
    if isinstance(data, float):
        data = rounded(data, literal.type.dtype)
    return np.ravel(np.asarray(data)).astype(kind.numpy)


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which bits differ; any NaN is every other."""
    if a.shape != b.shape:
        return np.ones(1, bool)
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    zeros = (a == 0) & (np.signbit(a) != np.signbit(b))
    return np.asarray(((a != b) | zeros) & ~(np.isnan(a) & np.isnan(b)))
