"""A statement as the simulator prepares it: its arguments told apart into what is computed and
what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs
import numpy as np

from umbel_ane.drivers.simulator import errors
from umbel_ane.mil.program import Literal, Ref, Statement
from umbel_ane.profile import Profile

Shape = tuple[int, ...]
Run = Callable[..., Any]  # of the computed operands: an array, or a tuple of them


@attrs.frozen(eq=False)
class Prepared:
    """What a statement computes: the arguments that `run` takes, the shapes of its results."""

    operands: tuple[object, ...]  # of `Statement.args`: Ref or Literal
    shapes: tuple[Shape, ...]
    run: Run
    exact: bool = False  # moves values, and rounds none


@attrs.frozen(eq=False)
class Call:
    statement: Statement
    profile: Profile
    shapes: Mapping[str, Shape]  # of all names so far
    constants: Mapping[str, Any]  # values of those that are known
    value: Callable[[Literal], Any]

    def invalid(self, why: str) -> NoReturn:
        msg = "a compile failed"
        called = f"{self.statement.name} = {self.statement.op}(...)"
        raise errors.invalid(msg, f"line {self.statement.line}: {called}", why)

    def argument(self, key: str) -> Any:
        """As it stands in the text; it must be there."""
        if key not in self.statement.args:
            self.invalid(f"there is no `{key}`")
        return self.statement.args[key]

    def shape(self, key: str) -> Shape:
        return self.shape_of(self.argument(key))

    def shape_of(self, argument: object) -> Shape:
        if isinstance(argument, Literal):
            return tuple(d or 1 for d in argument.type.dims or ())
        if not isinstance(argument, Ref) or argument.name not in self.shapes:
            self.invalid(f"{argument} is nothing that is known here")
        return self.shapes[argument.name]

    def known(self, key: str, default: Any = None) -> Any:
        """A value that must be constant: a number, a text, an array. Without a default it must
        be there."""
        if key not in self.statement.args and default is not None:
            return default
        argument = self.argument(key)
        if isinstance(argument, Literal):
            return self.value(argument)
        if not isinstance(argument, Ref) or argument.name not in self.constants:
            self.invalid(f"`{key}` is no constant")
        return self.constants[argument.name]

    def ints(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return tuple(int(v) for v in np.ravel(self.known(key, default)))

    def axis(self, key: str = "axis", *, of: str = "x") -> int:
        return int(self.known(key)) % len(self.shape(of))

    def constant(self, key: str) -> bool:
        argument = self.argument(key)
        return isinstance(argument, Literal) or argument.name in self.constants
