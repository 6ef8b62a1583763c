"""The sampler of one sequence: logits in, a token out.

There is one generator and one draw from it for every token that is not greedy, so the n-th
token depends on the seed, n, the settings, the tokens before it and its logits, and on nothing
else that runs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umbel.errors import SamplingError
from umbel.sampling import filters
from umbel.sampling.chain import STEPS, Choice, active
from umbel.sampling.settings import LARGE, Settings, is_integer, show

Mask = Callable[[NDArray[np.float64]], None]


class Sampler:
    """Chooses the tokens of one sequence and remembers them for the penalties.

    `prompt` tokens count for the penalties. `mask` forbids tokens: it gets a copy of the
    logits and sets entries to -inf. `breakers` are the ids of the tokens at which DRY stops
    looking back (see `breaker_tokens`). A deep copy goes on as the original would.
    """

    def __init__(
        self,
        settings: Settings,
        n_vocab: int,
        *,
        prompt: Sequence[int] = (),
        mask: Mask | None = None,
        breakers: Collection[int] = (),
    ) -> None:
        self.settings = settings
        self.n_vocab = n_vocab
        self.mask = mask
        # 32 bits: a seed that a user can read off the screen and type again.
        self.seed = secrets.randbits(32) if settings.seed is None else int(settings.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._steps = active(settings)
        self._ids = np.arange(n_vocab)
        self._bias_ids = self._tokens(settings.logit_bias, "logit_bias")
        biases = settings.logit_bias.values()
        self._biases = [bias if bias >= -LARGE else -math.inf for bias in biases]
        self._breakers = frozenset(breakers)
        self._history = self._tokens(prompt, "prompt")
        self._most_surprise = 2.0 * settings.mirostat_tau

    def sample(self, logits: NDArray[Any]) -> int:
        """Choose a token and take it into the history; the logits are left as they are."""
        token = self._best(logits)
        if not self.settings.greedy or self.mask or self._biases or self._steps:
            token = self._choose(self._scores(logits))
        self._history.append(token)
        return token

    def accept(self, token: int) -> None:
        """Take a token into the history that was not sampled here."""
        self._history += self._tokens([token], "token")

    def logprobs(
        self, logits: NDArray[Any], n: int, *, chosen: int | None = None
    ) -> list[tuple[int, float]]:
        """The n most probable tokens by the logits as they are, best first, as (id, log p).

        `chosen` is added at the end if it is not among them.
        """
        self._best(logits)
        if not (is_integer(n) and 0 <= n <= self.n_vocab):
            msg = "so many log probabilities cannot be given"
            expected = f"an integer from 0 to {self.n_vocab}"
            raise SamplingError(msg, where="logprobs", expected=expected, got=show(n))
        values = filters.log_softmax(logits)
        keep = filters.top_k(values, n)
        ids = self._ids if keep is None else keep
        order = ids[np.argsort(-values[ids], kind="stable")].tolist()[:n]
        if chosen is not None and chosen not in order:
            order += self._tokens([chosen], "token")
        return [(token, float(values[token])) for token in order]

    def _choose(self, scores: filters.Scores) -> int:
        """The token by the chain; nothing is drawn before the scores are known to be good."""
        choice = Choice(self._ids, scores, self._history, self._breakers)
        if scores.min() == -math.inf:
            choice.keep(np.flatnonzero(scores > -math.inf))
        if not self.settings.greedy:
            choice.chance = self._random.random()
        for name in self._steps:
            STEPS[name](choice, self.settings)
        if self.settings.greedy:
            at = int(np.argmax(choice.scores))
        elif self.settings.mirostat:
            at = self._mirostat(choice)
        else:
            at = choice.draw()
        return int(choice.ids[at])

    def _mirostat(self, choice: Choice) -> int:
        """Draw below a limit of surprise, and move the limit so that the mean comes to tau."""
        choice.keep(filters.surprise_cut(choice.scores, self._most_surprise))
        at = choice.draw()
        observed = -float(filters.log_softmax(choice.scores)[at]) / math.log(2)
        error = observed - self.settings.mirostat_tau
        self._most_surprise -= self.settings.mirostat_eta * error
        return at

    def _scores(self, logits: NDArray[Any]) -> filters.Scores:
        """A copy of the logits with the mask and the biases in it."""
        scores = np.array(logits, dtype=np.float64)
        if self.mask is not None:
            self.mask(scores)
        if self._biases:
            scores[self._bias_ids] += self._biases
        if not math.isfinite(scores.max()):
            msg = "no token is left to choose: logit_bias or the mask forbid all"
            raise SamplingError(msg, where="logit_bias, mask", expected="a finite score")
        return scores

    def _best(self, logits: NDArray[Any]) -> int:
        """The token of the highest logit, the lowest of equals; refuses logits without one."""
        if logits.shape != (self.n_vocab,) or logits.dtype.kind != "f":
            msg = "these are not the logits of one token"
            expected = f"floats of shape ({self.n_vocab},)"
            got = f"{logits.dtype} of shape {logits.shape}"
            raise SamplingError(msg, where="logits", expected=expected, got=got)
        best = int(np.argmax(logits))  # NaN, where there is one, counts as the highest
        if not math.isfinite(logits[best]):
            msg = "the logits hold no token to choose: they are NaN, inf, or all -inf"
            nan, inf = np.isnan(logits).sum(), np.isposinf(logits).sum()
            got = f"{nan} NaN, {inf} inf, {np.isneginf(logits).sum()} -inf of {self.n_vocab}"
            do = "check the file, or try another device: a computation went wrong"
            raise SamplingError(msg, where="logits", got=got, do=do)
        return best

    def _tokens(self, tokens: Collection[int], where: str) -> list[int]:
        """The tokens, checked: a negative id would count for another one, as NumPy wraps it."""
        for token in tokens:
            if not (is_integer(token) and 0 <= token < self.n_vocab):
                msg = "a token is not in the vocabulary"
                expected = f"an id from 0 to {self.n_vocab - 1}"
                raise SamplingError(msg, where=where, expected=expected, got=show(token))
        return [int(token) for token in tokens]
