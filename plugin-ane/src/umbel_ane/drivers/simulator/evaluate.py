"""A program made ready: one closure a statement, over slots that are emptied after their last
use. Shapes are checked here, so that what compiles also runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from umbel_ane.drivers.simulator import errors
from umbel_ane.drivers.simulator.call import Call, Prepared, Shape
from umbel_ane.drivers.simulator.constants import Constants
from umbel_ane.drivers.simulator.numbers import Round, rounding, without_nan
from umbel_ane.drivers.simulator.operations import KNOWN
from umbel_ane.mil.program import Function, Literal, Ref, Statement
from umbel_ane.profile import Profile


@attrs.frozen(eq=False)
class Step:
    """`run` over the values of some slots fills others."""

    run: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rounds: tuple[Round | None, ...]
    stored: tuple[int, ...]  # of the operands: weights that are held in float16
    done: tuple[int, ...]  # slots that nobody reads any more


@attrs.frozen(eq=False)
class Executable:
    steps: Sequence[Step]
    slots: Sequence[Any]  # constants at their places
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    round_inputs: Round

    def __call__(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for these inputs, which are float32 or integers."""
        slots = list(self.slots)
        for name, slot in self.inputs.items():
            slots[slot] = self.round_inputs(given[name])
        with np.errstate(all="ignore"):
            for step in self.steps:
                values = [slots[i] for i in step.operands]
                for i in step.stored:
                    values[i] = values[i].astype(np.float32)
                made = step.run(*values)
                if len(step.results) == 1:
                    made = (made,)
                for slot, value, rounded in zip(step.results, made, step.rounds, strict=True):
                    slots[slot] = value if rounded is None else rounded(value)
                for slot in step.done:
                    slots[slot] = None
        return {name: slots[slot] for name, slot in self.outputs.items()}


def prepare(main: Function, constants: Constants, profile: Profile) -> Executable:
    """The executable of a function; what is no valid program is refused."""
    maker = _Maker(profile, constants)
    for value in main.inputs:
        if value.type.dims is None or None in value.type.dims:
            msg = f"the input {value.name} is {value.type}, whose size is not known"
            raise errors.invalid(msg)
        maker.place(value.name, tuple(d or 1 for d in value.type.dims))
    for statement in main.statements:
        maker.add(statement)
    missing = [name for name in main.outputs if name not in maker.slots]
    if missing:
        msg = f"the outputs {', '.join(missing)} are nowhere computed"
        raise errors.invalid(msg)
    return maker.executable(main)


@attrs.define(eq=False)
class _Maker:
    profile: Profile
    constants: Constants
    shapes: dict[str, Shape] = attrs.field(factory=dict)
    known: dict[str, Any] = attrs.field(factory=dict)
    slots: dict[str, int] = attrs.field(factory=dict)
    filled: list[Any] = attrs.field(factory=list)
    steps: list[Step] = attrs.field(factory=list)

    def place(self, name: str, shape: Shape, value: Any = None) -> int:
        self.shapes[name], self.slots[name] = shape, len(self.filled)
        self.filled.append(value)
        return self.slots[name]

    def add(self, statement: Statement) -> None:
        if statement.op == "const":
            value: Any = self.constants.value(self._literal(statement))
        elif statement.op == "constexpr_lut_to_dense":
            value = self.constants.palette(statement)
        else:
            self._step(statement)
            return
        self.known[statement.name] = value
        self.place(statement.name, np.shape(value), _operand(value))

    def _literal(self, statement: Statement) -> Literal:
        given = statement.attributes.get("val", statement.args.get("val"))
        if not isinstance(given, Literal):
            msg = f"the constant {statement.name} has no value"
            raise errors.invalid(msg, f"line {statement.line}")
        return given

    def _step(self, statement: Statement) -> None:
        profile = self.profile
        call = Call(statement, profile, self.shapes, self.known, self.constants.value)
        try:
            made = KNOWN[statement.op](call)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            call.invalid(f"its arguments do not fit: {error}")
        self._checked(call, made)
        operands = tuple(self._slot(argument) for argument in made.operands)
        stored = tuple(
            i
            for i, slot in enumerate(operands)
            if getattr(self.filled[slot], "dtype", None) == np.float16
        )
        rounds = tuple(
            None if made.exact else rounding(profile, r.type.dtype) for r in statement.results
        )
        results = tuple(
            self.place(r.name, shape)
            for r, shape in zip(statement.results, made.shapes, strict=True)
        )
        self.steps.append(Step(made.run, operands, results, rounds, stored, ()))

    def _checked(self, call: Call, made: Prepared) -> None:
        declared = [tuple(d or 1 for d in r.type.dims or ()) for r in call.statement.results]
        if declared != list(made.shapes):
            call.invalid(f"it gives {list(made.shapes)}, not {declared}")

    def _slot(self, argument: object) -> int:
        if isinstance(argument, Ref):
            return self.slots[argument.name]
        assert isinstance(argument, Literal)
        value = self.constants.value(argument)
        self.filled.append(_operand(value))
        return len(self.filled) - 1

    def executable(self, main: Function) -> Executable:
        outputs = {name: self.slots[name] for name in main.outputs}
        last = {slot: i for i, step in enumerate(self.steps) for slot in step.operands}
        for i, step in enumerate(self.steps):
            last |= {slot: i for slot in step.results if slot not in last}
        done: list[list[int]] = [[] for _ in self.steps]
        for slot, i in last.items():
            if self.filled[slot] is None and slot not in outputs.values():
                done[i].append(slot)
        steps = [attrs.evolve(s, done=tuple(d)) for s, d in zip(self.steps, done, strict=True)]
        inputs = {value.name: self.slots[value.name] for value in main.inputs}
        clean: Round = without_nan if self.profile.drops_nan else lambda values: values
        return Executable(steps, self.filled, inputs, outputs, clean)


def _operand(value: Any) -> Any:
    """A constant as an operand: numbers in float32."""
    if isinstance(value, float):
        return np.float32(value)
    return np.asarray(value) if isinstance(value, (bool, int)) else value
