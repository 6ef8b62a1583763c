"""What a user may ask of the sampler, checked when it is made.

Names, defaults and the order of the samplers are those of llama.cpp, so that a setting found
on a model card means the same here. A value that would turn up later as NaN, an overflow or an
index out of bounds (settings come from JSON too) is refused here, with the field named.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from attrs.validators import optional

from umbel.errors import SamplingError

SAMPLERS = ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
CONSTRAINTS = ("json_schema", "regex", "grammar")

# A float32 logit divided by less leaves no second choice, and may leave the range of floats.
_GREEDY_BELOW = 1e-6
# Far above any use, far below where products of logits and settings overflow a float64.
_LARGE = 1e9

_Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _rule(expected: str, holds: Callable[[Any], bool]) -> _Check:
    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if not holds(value):
            msg = f"the sampling setting {field.name} cannot be used"
            raise SamplingError(msg, where=field.name, expected=expected, got=f"{value!r:.80}")

    return check


_INTEGER = (int, np.integer)
_REAL = (*_INTEGER, float, np.floating)


def _is(kind: tuple[type, ...], value: object) -> bool:
    """Whether a value is a number of this kind; a bool is not, though Python counts with it."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _real(low: float, high: float) -> _Check:
    expected = f"a number from {low:g} to {high:g}"
    return _rule(expected, lambda v: _is(_REAL, v) and bool(low <= v <= high))  # NaN is not


def _integer(low: int, high: int = 2**31 - 1) -> _Check:
    expected = f"an integer from {low} to {high}"
    return _rule(expected, lambda v: _is(_INTEGER, v) and low <= v <= high)


def _are_biases(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _is(_INTEGER, token) and _is(_REAL, bias) and (abs(bias) <= _LARGE or bias == -math.inf)
        for token, bias in value.items()
    )


_MIROSTAT = _rule("0 (off) or 2", lambda v: _is(_INTEGER, v) and v in (0, 2))
_BREAKERS = _rule(
    "a list of strings that are not empty",
    lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v),
)
_SAMPLERS = _rule(
    f"a list of names out of {', '.join(SAMPLERS)}, each at most once",
    lambda v: isinstance(v, tuple) and all(s in SAMPLERS for s in v) and len({*v}) == len(v),
)
_TEXT = _rule("a text", lambda v: isinstance(v, str))
_OBJECT = _rule("an object, its text, or True (any object)", lambda v: v.startswith("{"))
_BIASES = _rule(f"a mapping from token ids to numbers up to {_LARGE:g} or -inf", _are_biases)


def _unchangeable(value: Any) -> Any:
    """A list, as it comes from JSON, as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _schema(value: Any) -> str:
    """A JSON schema as text; True is any object."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        return json.dumps({"type": "object"} if schema is True else schema)
    except (TypeError, ValueError, RecursionError) as error:
        msg = "the JSON schema is no JSON"
        raise SamplingError(msg, where="json_schema", got=error) from error


@attrs.frozen(kw_only=True)
class Settings:
    """How to choose tokens.

    * `temperature` 0 (below 1e-6) is greedy: penalties and biases count, nothing else does.
    * `top_k` 0 or -1, `top_p` 1, `min_p` 0, `typical` 1, `xtc_probability` 0,
      `dry_multiplier` 0 and `repeat_penalty` 1 switch a sampler off; no combination leaves
      less than one candidate.
    * `penalty_last_n` and `dry_last_n` count back from the newest token: -1 is all, 0 none.
    * `logit_bias` is added before anything else; -inf forbids a token.
    * `mirostat` 2 takes the place of the filters (top_k to xtc), whatever they are set to.
    * `samplers` is the order in which they work; one that is not named does not work.
    * `json_schema` (a dict, its text, or True: any object), `regex` or `grammar` (GBNF or Lark)
      is what the text must obey, whatever the others say: one of them at most.
    * `seed` None has one drawn: `Sampler.seed` tells it.
    """

    temperature: float = attrs.field(default=0.8, validator=_real(0, _LARGE))
    top_k: int = attrs.field(default=40, validator=_integer(-1))
    top_p: float = attrs.field(default=0.95, validator=_real(0, 1))
    min_p: float = attrs.field(default=0.05, validator=_real(0, 1))
    typical: float = attrs.field(default=1.0, validator=_real(0, 1))
    xtc_probability: float = attrs.field(default=0.0, validator=_real(0, 1))
    xtc_threshold: float = attrs.field(default=0.1, validator=_real(0, 1))
    dry_multiplier: float = attrs.field(default=0.0, validator=_real(0, _LARGE))
    dry_base: float = attrs.field(default=1.75, validator=_real(1, 100))
    dry_allowed_length: int = attrs.field(default=2, validator=_integer(0))
    dry_last_n: int = attrs.field(default=-1, validator=_integer(-1))
    dry_breakers: tuple[str, ...] = attrs.field(
        default=("\n", ":", '"', "*"), converter=_unchangeable, validator=_BREAKERS
    )
    repeat_penalty: float = attrs.field(default=1.0, validator=_real(1e-6, 1e6))
    frequency_penalty: float = attrs.field(default=0.0, validator=_real(-_LARGE, _LARGE))
    presence_penalty: float = attrs.field(default=0.0, validator=_real(-_LARGE, _LARGE))
    penalty_last_n: int = attrs.field(default=64, validator=_integer(-1))
    logit_bias: Mapping[int, float] = attrs.field(
        factory=dict, converter=copy.copy, validator=_BIASES, hash=False
    )
    mirostat: int = attrs.field(default=0, validator=_MIROSTAT)
    mirostat_tau: float = attrs.field(default=5.0, validator=_real(0, _LARGE))
    mirostat_eta: float = attrs.field(default=0.1, validator=_real(0, 1))
    seed: int | None = attrs.field(default=None, validator=optional(_integer(0, 2**63 - 1)))
    samplers: tuple[str, ...] = attrs.field(
        default=SAMPLERS, converter=_unchangeable, validator=_SAMPLERS
    )
    json_schema: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(_schema), validator=optional(_OBJECT)
    )
    regex: str | None = attrs.field(default=None, validator=optional(_TEXT))
    grammar: str | None = attrs.field(default=None, validator=optional(_TEXT))

    @property
    def constraint(self) -> tuple[str, str] | None:
        """The kind and the text of what must be obeyed."""
        given = ((name, getattr(self, name)) for name in CONSTRAINTS)
        return next((pair for pair in given if pair[1] is not None), None)

    def __attrs_post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            msg, got = "a text can obey one constraint only", " and ".join(given)
            raise SamplingError(msg, where=given[1], got=got)

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken and no random number is drawn."""
        return self.temperature < _GREEDY_BELOW
