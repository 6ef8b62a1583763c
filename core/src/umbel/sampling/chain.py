"""The chain of samplers: which of them the settings call for, and what each does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs
import numpy as np

from umbel.sampling import filters, penalties
from umbel.sampling.settings import Settings


@attrs.define
class Choice:
    """What can still be chosen, what was said before, and the number in [0, 1) that chooses."""

    ids: penalties.Ids
    scores: filters.Scores
    history: Sequence[int]
    breakers: Collection[int]
    chance: float = 0.0

    def keep(self, positions: filters.Positions | None) -> None:
        """Narrow the choice; None keeps all."""
        if positions is not None:
            self.ids, self.scores = self.ids[positions], self.scores[positions]

    def draw(self) -> int:
        """The position that `chance` falls on."""
        total = np.cumsum(np.exp(self.scores - self.scores.max()))
        at = int(np.searchsorted(total, self.chance * total[-1], side="right"))
        return min(at, len(total) - 1)


def _exclude(c: Choice, s: Settings) -> None:
    # One random number decides twice: the part of [0, 1) in which it falls says whether to
    # exclude, and its place inside that part, which is uniform again, will choose the token.
    if c.chance < s.xtc_probability:
        c.chance /= s.xtc_probability
        c.keep(filters.xtc(c.scores, s.xtc_threshold))
    else:
        c.chance = (c.chance - s.xtc_probability) / (1 - s.xtc_probability)


def _heat(c: Choice, s: Settings) -> None:
    c.scores = c.scores / s.temperature


STEPS: dict[str, Callable[[Choice, Settings], None]] = {
    "penalties": lambda c, s: penalties.repetition(c.ids, c.scores, c.history, s),
    "dry": lambda c, s: penalties.dry(c.ids, c.scores, c.history, s, c.breakers),
    "top_k": lambda c, s: c.keep(filters.top_k(c.scores, s.top_k)),
    "typ_p": lambda c, s: c.keep(filters.typical(c.scores, s.typical)),
    "typical": lambda c, s: c.keep(filters.typical(c.scores, s.typical)),
    "top_p": lambda c, s: c.keep(filters.top_p(c.scores, s.top_p)),
    "min_p": lambda c, s: c.keep(filters.min_p(c.scores, s.min_p)),
    "xtc": _exclude,
    "temperature": _heat,
}


def active(s: Settings) -> tuple[str, ...]:
    """The samplers that have something to do under these settings, in the order asked for."""
    penalise = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) != (1, 0, 0)
    on = {
        "penalties": penalise,
        "dry": s.dry_multiplier > 0,
        "temperature": not s.greedy,
    }
    filtering = not (s.greedy or s.mirostat)
    return tuple(name for name in s.samplers if on.get(name, filtering))
