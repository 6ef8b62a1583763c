"""A program in a few lines, and a driver to try it on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import numpy as np

from umbel_ane.drivers import AneError, Driver, Model, Request
from umbel_ane.mil.blob import write_blob
from umbel_ane.mil.program import (
    Argument,
    Blob,
    Function,
    Literal,
    Program,
    Ref,
    Statement,
    Type,
    Value,
)
from umbel_ane.mil.text import write
from umbel_ane.profile import Profile

MOST = 25  # compiles of one report; a process has some 119
ROOM = (
    65536  # bytes of a surface, unless told otherwise: more than all that was said to be enough
)
DTYPES = {"fp16": np.float16, "fp32": np.float32}
Shape = tuple[int, ...]
Plain = bool | int | float | str | tuple[int, ...]


@attrs.frozen
class Found:
    """What an experiment found. `agrees` says whether that is what a profile says; without it,
    no profile says anything about it."""

    what: str
    answer: str
    rule: str = ""  # field of a profile
    agrees: Callable[[Profile], bool] | None = None


@attrs.define(eq=False)
class Text:
    """A program that is being written. Arguments that are plain values become named constants;
    those that are `Literal`s stand in place."""

    inputs: Mapping[str, Type]
    statements: list[Statement] = attrs.field(factory=list)
    files: dict[str, bytes] = attrs.field(factory=dict)

    def weights(self, path: str, *arrays: np.ndarray) -> list[Ref]:
        """Constants in one file."""
        path = f"@model_path/{path}"
        self.files[path], offsets = write_blob([a.astype(np.float16) for a in arrays])
        return [
            self.blob(path, n, Type("fp16", a.shape))
            for n, a in zip(offsets, arrays, strict=True)
        ]

    def blob(self, path: str, offset: int, kind: Type) -> Ref:
        return self.constant(Literal(kind, Blob(path, offset)))

    def constant(self, literal: Literal) -> Ref:
        name = f"c{len(self.statements)}"
        value = (Value(name, literal.type),)
        self.statements.append(Statement("const", value, {}, {"val": literal}))
        return Ref(name)

    def plain(self, value: Plain) -> Ref:
        if isinstance(value, tuple):
            values = np.array(value, np.int32)
            return self.constant(Literal(Type("int32", (len(value),)), values))
        kinds = {bool: "bool", int: "int32", float: "fp16", str: "string"}
        return self.constant(Literal(Type(kinds[type(value)]), value))

    def add(
        self, op: str, shape: Shape, dtype: str = "fp16", name: str = "", /, **args: object
    ) -> Ref:
        """A statement; keyword arguments are its own."""
        given = {key: self._argument(value) for key, value in args.items()}
        name = name or f"v{len(self.statements)}"
        result = (Value(name, Type(dtype, shape)),)
        self.statements.append(Statement(op, result, given))
        return Ref(name)

    def _argument(self, value: object) -> Argument:
        if isinstance(value, (Ref, Literal)):
            return value
        if isinstance(value, tuple) and isinstance(value[0], Ref):
            return value
        assert isinstance(value, (bool, int, float, str, tuple))
        return self.plain(value)

    def conv(self, x: Ref, weight: Ref, shape: Shape, **more: object) -> Ref:
        how = {"strides": (1, 1), "pad": (0, 0, 0, 0), "dilations": (1, 1)}
        return self.add(
            "conv", shape, x=x, weight=weight, pad_type="valid", groups=1, **how, **more
        )

    def program(self, *outputs: Ref) -> Program:
        inputs = tuple(Value(name, kind) for name, kind in self.inputs.items())
        names = tuple(ref.name for ref in outputs)
        main = Function("main", "ios18", inputs, tuple(self.statements), names)
        return Program("1.3", (main,))


@attrs.define(eq=False)
class Bench:
    """A driver, and how many programs it has compiled for us."""

    driver: Driver
    compiles: int = 0
    spent: dict[str, float] = attrs.field(
        factory=dict
    )  # ms of the last compile, load, evaluate

    @contextmanager
    def compiled(self, text: Text, *outputs: Ref) -> Iterator[Model]:
        if self.compiles >= MOST:
            msg = f"a report compiles no more than {MOST} programs"
            raise AneError(msg, domain="")
        data = write(text.program(*outputs)).encode()
        model = self.driver.model(self.driver.descriptor(data, text.files))
        try:
            self.compiles += 1
            self.timed("compile", model.compile)
            yield model
        finally:
            model.purge()
            model.release()

    @contextmanager
    def loaded(self, text: Text, *outputs: Ref) -> Iterator[Loaded]:
        with self.compiled(text, *outputs) as model:
            self.timed("load", model.load)
            yield Loaded(self, model, text.program(*outputs).main.types())

    def refused(self, text: Text, *outputs: Ref) -> str:
        """What the compiler says against a program; nothing if it takes it."""
        try:
            with self.compiled(text, *outputs):
                return ""
        except AneError as error:
            return error.text or "no, without a reason"

    def timed(self, what: str, call: Callable[[], None]) -> float:
        begin = time.perf_counter()
        call()
        self.spent[what] = (time.perf_counter() - begin) * 1e3
        return self.spent[what]


@attrs.frozen(eq=False)
class Loaded:
    """A program that can be run."""

    bench: Bench
    model: Model
    types: Mapping[str, Type]

    def run(
        self,
        given: Mapping[str, np.ndarray],
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        sizes: Mapping[str, int] | None = None,
    ) -> dict[str, np.ndarray]:
        """Binds in the order that the driver tells, or in the one that is given."""
        with self.request(given, inputs, outputs, sizes) as (request, names):
            self.bench.timed("evaluate", lambda: self.model.evaluate(request))
            found = {}
            for name, surface in zip(names, request.outputs, strict=True):
                with surface.lock(read_only=True) as memory:
                    found[name] = self._seen(memory, name).astype(np.float32)
            return found

    @contextmanager
    def request(
        self,
        given: Mapping[str, np.ndarray],
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        sizes: Mapping[str, int] | None = None,
    ) -> Iterator[tuple[Request, Sequence[str]]]:
        """Surfaces with those values, and the names of the outputs as they are bound."""
        order = self.model.attributes()
        sides = inputs or order.inputs, outputs or order.outputs
        made = []
        try:
            for name in (*sides[0], *sides[1]):
                made.append(self.bench.driver.surface((sizes or {}).get(name, ROOM)))
            count = len(sides[0])
            for name, surface in zip(sides[0], made[:count], strict=True):
                with surface.lock() as memory:
                    memory[:] = 0
                    self._seen(memory, name)[...] = given[name]
            yield Request(made[:count], made[count:]), sides[1]
        finally:
            for surface in made:
                surface.release()

    def _seen(self, memory: np.ndarray, name: str) -> np.ndarray:
        """Packed from byte 0."""
        kind = self.types[name]
        dtype, dims = np.dtype(DTYPES[kind.dtype]), [d or 1 for d in kind.dims or ()]
        return memory[: kind.size * dtype.itemsize].view(dtype).reshape(dims)
