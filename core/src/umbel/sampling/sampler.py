"""The sampler of one sequence: logits in, a token out, by a chain of samplers.

There is one generator and one draw from it for every token that is not greedy, so the n-th
token depends on the seed, n, the settings, the tokens before it and its logits, and on nothing
else that runs.
"""

import math
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import numpy as np

from umbel.errors import SamplingError
from umbel.extras.grammar import Constraint
from umbel.sampling import filters, penalties
from umbel.sampling.settings import Settings


@attrs.define
class Choice:
    """What can still be chosen, what was said before, and the number in [0, 1) that chooses."""

    ids: np.ndarray  # (candidates,), rising
    scores: np.ndarray  # (candidates,) finite; float64, but for the whole vocabulary
    history: Sequence[int]
    chance: float = 0.0

    def keep(self, positions: np.ndarray) -> None:
        self.ids = self.ids[positions]
        self.scores = self.scores[positions].astype(np.float64, copy=False)

    def narrow(self, select: Callable[[np.ndarray, Any], np.ndarray], by: float) -> None:
        """Keep what a filter selects."""
        self.keep(select(self.scores, by))

    def draw(self) -> int:
        """The position that `chance` falls on."""
        scores = self.scores.astype(np.float64, copy=False)
        total = np.cumsum(np.exp(scores - scores.max()))
        at = int(np.searchsorted(total, self.chance * total[-1], side="right"))
        return min(at, len(total) - 1)


def _exclude(c: Choice, s: Settings) -> None:
    # One random number decides twice: the part of [0, 1) in which it falls says whether to
    # exclude, and its place inside that part, which is uniform again, will choose the token.
    if c.chance < s.xtc_probability:
        c.chance /= s.xtc_probability
        c.narrow(filters.xtc, s.xtc_threshold)
    else:
        c.chance = (c.chance - s.xtc_probability) / (1 - s.xtc_probability)


def _widen(c: Choice) -> None:
    c.scores = c.scores.astype(np.float64)


def _drop(c: Choice) -> None:
    """What is forbidden goes; it is among the k best where others are fewer."""
    if c.scores.min() == -math.inf:
        c.keep(np.flatnonzero(c.scores > -math.inf))


def _heat(c: Choice, s: Settings) -> None:
    c.scores = c.scores / s.temperature


Step = Callable[[Choice], None]


def chain(s: Settings, breakers: Collection[int]) -> list[Step]:
    """The steps of the samplers that have something to do, in the order asked for."""
    repeats = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) != (1, 0, 0)
    dry, narrows = s.dry_multiplier > 0, not s.greedy and not s.mirostat
    steps: dict[str, tuple[bool, Step]] = {
        "penalties": (repeats, lambda c: penalties.repetition(c.ids, c.scores, c.history, s)),
        "dry": (dry, lambda c: penalties.dry(c.ids, c.scores, c.history, s, breakers)),
        "top_k": (narrows and s.top_k > 0, lambda c: c.narrow(filters.top_k, s.top_k)),
        "typ_p": (narrows and s.typical < 1, lambda c: c.narrow(filters.typical, s.typical)),
        "top_p": (narrows and s.top_p < 1, lambda c: c.narrow(filters.top_p, s.top_p)),
        "min_p": (narrows and s.min_p > 0, lambda c: c.narrow(filters.min_p, s.min_p)),
        "xtc": (narrows and s.xtc_probability > 0, lambda c: _exclude(c, s)),
        "temperature": (not s.greedy, lambda c: _heat(c, s)),
    }
    working = [name for name in s.samplers if steps[name][0]]
    made = [steps[name][1] for name in working]
    if working[:1] == ["top_k"]:  # found among float32 as well, and in half the time
        return [made[0], _drop, *made[1:]]
    return [_drop, _widen, *made] if made or not s.greedy else []


class Sampler:
    """Chooses the tokens of one sequence and remembers them for the penalties.

    `prompt` tokens count for the penalties. `breakers` are the ids of the tokens at which DRY
    stops looking back (see `breaker_tokens`). All else that is asked for chooses among what the
    `constraint` allows. A deep copy goes on as the original would.
    """

    def __init__(
        self,
        settings: Settings,
        n_vocab: int,
        *,
        prompt: Sequence[int] = (),
        breakers: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.settings = settings
        self.constraint = constraint
        # 32 bits: a seed that a user can read off the screen and type again.
        self.seed = secrets.randbits(32) if settings.seed is None else int(settings.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._steps = chain(settings, frozenset(breakers))
        self._ids = np.arange(n_vocab)
        self._history = list(prompt)
        self._most_surprise = 2.0 * settings.mirostat_tau
        for token in settings.logit_bias:
            if not 0 <= token < n_vocab:
                msg = "logit_bias names a token that is not in the vocabulary"
                expected = f"an id from 0 to {n_vocab - 1}"
                raise SamplingError(msg, where="logit_bias", expected=expected, got=token)

    @property
    def done(self) -> bool:
        """Whether the constraint lets nothing follow but the end."""
        return self.constraint is not None and self.constraint.done

    def sample(self, logits: np.ndarray) -> int:
        """Choose a token and take it into the history; the logits are left as they are."""
        scores = self._scores(logits)
        choice = Choice(self._ids, scores, self._history)
        if self.constraint is not None:
            choice.keep(self._allowed(scores, self.constraint))
        if not self.settings.greedy:
            choice.chance = self._random.random()
        for step in self._steps:
            step(choice)
        if self.settings.greedy:
            at = int(np.argmax(choice.scores))
        elif self.settings.mirostat:
            at = self._mirostat(choice)
        else:
            at = choice.draw()
        token = int(choice.ids[at])
        if self.constraint is not None:
            self.constraint.accept(token)
        self._history.append(token)
        return token

    def logprobs(self, logits: np.ndarray, n: int, chosen: int) -> list[tuple[int, float]]:
        """The n most probable tokens by the logits as they are, best first, as (id, log p).

        `chosen` is added at the end if it is not among them.
        """
        values = filters.log_softmax(logits)
        best = filters.top_k(values, max(n, 1))
        order = best[np.argsort(-values[best], kind="stable")].tolist()[:n]
        if chosen not in order:
            order.append(chosen)
        return [(token, float(values[token])) for token in order]

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        """The logits with the biases in them, refused where there is no best token."""
        scores = logits
        if self.settings.logit_bias:
            scores = logits.astype(np.float64)
        for token, bias in self.settings.logit_bias.items():
            scores[token] += bias
        best = float(scores.max())  # NaN, where there is one
        if not math.isfinite(best):
            msg = "no token to choose: the logits are not finite, or logit_bias forbids all"
            do = "check the file, or try another device: a computation went wrong"
            raise SamplingError(msg, where="logits", got=f"{best} for the highest", do=do)
        return scores

    def _allowed(self, scores: np.ndarray, constraint: Constraint) -> np.ndarray:
        allowed = np.flatnonzero(constraint.mask() & (scores > -math.inf))
        if not len(allowed):
            msg = "no token to choose: logit_bias forbids all that the constraint allows"
            raise SamplingError(msg, where="logit_bias")
        return allowed

    def _mirostat(self, choice: Choice) -> int:
        """Draw below a limit of surprise, and move the limit so that the mean comes to tau."""
        choice.narrow(filters.surprise_cut, self._most_surprise)
        at = choice.draw()
        observed = -float(filters.log_softmax(choice.scores)[at]) / math.log(2)
        error = observed - self.settings.mirostat_tau
        self._most_surprise -= self.settings.mirostat_eta * error
        return at
