"""What a user may ask of the sampler, checked when it is made.

Names, defaults and the order of the samplers are those of llama.cpp, so that a setting found
on a model card means the same here. A value that would turn up later as NaN, an overflow or an
index out of bounds (settings come from JSON too) is refused here, with the field named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import attrs
import numpy as np
from attrs.validators import deep_iterable, deep_mapping, optional

from umbel.errors import SamplingError

SAMPLERS = ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")

# A float32 logit divided by less leaves no second choice, and may leave the range of floats.
_GREEDY_BELOW = 1e-6
# Far above any use, far below where products of logits and settings overflow a float64.
LARGE = 1e9
_MAX_COUNT = 2**31 - 1
_MAX_SEED = 2**63 - 1

_Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; a bool is not, though Python counts with it."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def show(value: object) -> str:
    """A value as it may stand in an error: short, also where repr() is huge or refuses."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        text = f"{type(value).__name__} too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _rule(expected: str, holds: Callable[[Any], bool]) -> _Check:
    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if not holds(value):
            msg = f"the sampling setting {field.name} cannot be used"
            raise SamplingError(msg, where=field.name, expected=expected, got=show(value))

    return check


def _is_real(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number from low to high, which NaN is not."""
    number = is_integer(value) or isinstance(value, float | np.floating)
    return number and bool(low <= value <= high)


def _real(low: float, high: float) -> _Check:
    return _rule(f"a number from {low:g} to {high:g}", lambda v: _is_real(v, low, high))


def _integer(low: int, high: int = _MAX_COUNT) -> _Check:
    expected = f"an integer from {low} to {high}"
    return _rule(expected, lambda v: is_integer(v) and low <= v <= high)


_MIROSTAT = _rule("0 (off) or 2", lambda v: is_integer(v) and v in (0, 2))
_BREAKER = _rule("strings that are not empty", lambda v: isinstance(v, str) and v != "")
_SAMPLER = _rule(
    f"names out of {', '.join(SAMPLERS)}",
    lambda v: isinstance(v, str) and v in (*SAMPLERS, "typical"),
)
_ONCE = _rule("each sampler at most once", lambda v: len(set(v)) == len(v))
_MAPPING = _rule("a mapping from token id to bias", lambda v: isinstance(v, Mapping))


def _strings(value: Any) -> tuple[Any, ...]:
    """A sequence as a tuple; a bare string is one string here, not a sequence of letters."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


@attrs.frozen(kw_only=True)
class Settings:
    """How to choose tokens.

    * `temperature` 0 (below 1e-6) is greedy: penalties and biases count, nothing else does.
    * `top_k` 0 or -1, `top_p` 1, `min_p` 0, `typical` 1, `xtc_probability` 0,
      `dry_multiplier` 0 and `repeat_penalty` 1 switch a sampler off; no combination leaves
      less than one candidate.
    * `penalty_last_n` and `dry_last_n` count back from the newest token: -1 is all, 0 none.
    * `logit_bias` is added before anything else; -inf (any below -1e9) forbids a token.
    * `mirostat` 2 takes the place of the filters (top_k to xtc), whatever they are set to.
    * `samplers` is the order in which they work; one that is not named does not work.
    * `seed` None has one drawn: `Sampler.seed` tells it.
    """

    temperature: float = attrs.field(default=0.8, validator=_real(0, LARGE))
    top_k: int = attrs.field(default=40, validator=_integer(-1))
    top_p: float = attrs.field(default=0.95, validator=_real(0, 1))
    min_p: float = attrs.field(default=0.05, validator=_real(0, 1))
    typical: float = attrs.field(default=1.0, validator=_real(0, 1))
    xtc_probability: float = attrs.field(default=0.0, validator=_real(0, 1))
    xtc_threshold: float = attrs.field(default=0.1, validator=_real(0, 1))
    dry_multiplier: float = attrs.field(default=0.0, validator=_real(0, LARGE))
    dry_base: float = attrs.field(default=1.75, validator=_real(1, 100))
    dry_allowed_length: int = attrs.field(default=2, validator=_integer(0))
    dry_last_n: int = attrs.field(default=-1, validator=_integer(-1))
    dry_breakers: tuple[str, ...] = attrs.field(
        default=("\n", ":", '"', "*"), converter=_strings, validator=deep_iterable(_BREAKER)
    )
    repeat_penalty: float = attrs.field(default=1.0, validator=_real(1e-6, 1e6))
    frequency_penalty: float = attrs.field(default=0.0, validator=_real(-LARGE, LARGE))
    presence_penalty: float = attrs.field(default=0.0, validator=_real(-LARGE, LARGE))
    penalty_last_n: int = attrs.field(default=64, validator=_integer(-1))
    logit_bias: Mapping[int, float] = attrs.field(
        factory=dict,
        converter=_copied,
        validator=deep_mapping(_integer(0), _real(-math.inf, LARGE), _MAPPING),
        hash=False,
    )
    mirostat: int = attrs.field(default=0, validator=_MIROSTAT)
    mirostat_tau: float = attrs.field(default=5.0, validator=_real(0, LARGE))
    mirostat_eta: float = attrs.field(default=0.1, validator=_real(0, 1))
    seed: int | None = attrs.field(default=None, validator=optional(_integer(0, _MAX_SEED)))
    samplers: tuple[str, ...] = attrs.field(
        default=SAMPLERS, converter=_strings, validator=[deep_iterable(_SAMPLER), _ONCE]
    )

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken and no random number is drawn."""
        return self.temperature < _GREEDY_BELOW
