"""The fields of a request's JSON: each is checked where it is read, and named where it is bad.

A field that is null is one that is not given, as OpenAI has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import attrs

from umbel.errors import OptionError


def parsed(body: bytes) -> Any:
    """The JSON that a body is."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        msg = "the body is no JSON"
        raise OptionError(msg, where="body", got=_short(error)) from None


def _no_number(text: str) -> NoReturn:
    msg = f"{text} is no JSON number"
    raise ValueError(msg)


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@attrs.frozen
class Fields:
    """An object; `where` is its own name in the request."""

    data: dict[str, Any]
    where: str = ""

    @classmethod
    def of(cls, data: object, where: str) -> Fields:
        if not isinstance(data, dict):
            raise _bad(where or "body", "an object", data)
        return cls(data, where)

    def name(self, field: str) -> str:
        return f"{self.where}.{field}" if self.where else field

    def has(self, field: str) -> bool:
        return self.data.get(field) is not None

    def refuse(self, field: str, expected: str) -> NoReturn:
        raise _bad(self.name(field), expected, self.data.get(field))

    def integer(self, field: str, default: Any, least: int, most: int) -> Any:
        value = self.data.get(field)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)  # some clients write 5 as 5.0
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(field, f"a whole number from {least} to {most}")
        return value

    def number(self, field: str, default: Any, least: float, most: float) -> Any:
        value = self.data.get(field)
        if value is None:
            return default
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not least <= value <= most or not math.isfinite(value):
            self.refuse(field, f"a number from {least:g} to {most:g}")
        return value

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self.data.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(field, "true or false")
        return value

    def text(self, field: str, default: Any = None) -> Any:
        value = self.data.get(field)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(field, "a text")
        return value

    def choice(self, field: str, choices: Sequence[str], default: str) -> str:
        value = self.data.get(field)
        if value is None:
            return default
        if value not in choices or not isinstance(value, str):
            self.refuse(field, " or ".join(map(repr, choices)))
        return value

    def items(self, field: str, least: int = 0, most: int = 1 << 31) -> list[Any]:
        """A list, empty where it is not given."""
        value = self.data.get(field)
        value = [] if value is None else value
        if not isinstance(value, list) or not least <= len(value) <= most:
            bounds = f"a list of {least} to {most}" if most < 1 << 31 else "a list"
            self.refuse(field, bounds)
        return value

    def inner(self, field: str) -> Fields | None:
        """An object of its own; None where it is not given."""
        value = self.data.get(field)
        return None if value is None else Fields.of(value, self.name(field))


def _bad(where: str, expected: str, got: object) -> OptionError:
    msg = f"the field {where} cannot be used" if got is not None else f"{where} is missing"
    return OptionError(msg, where=where, expected=expected, got=_short(got))
