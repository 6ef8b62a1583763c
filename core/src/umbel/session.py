"""A session: one sequence with its state, to be fed, continued, forked, rewound and saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from umbel.engine import Engine, Job, full
from umbel.errors import OptionError
from umbel.generation import Generation
from umbel.sampling import Sampler, breaker_tokens
from umbel.sampling import Settings as Sampling
from umbel.state import Sequence as Seq
from umbel.state import store
from umbel.text import Tokenizer

T = TypeVar("T")
Prompt = str | Sequence[int]


class Session:
    """One sequence of tokens. Its methods wait for the engine; Ctrl-C stops them.

    Use it in a `with` block, or close it: its cells are needed by others.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        fingerprint: str,
        sequence: Seq | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._sequence = sequence or Seq()
        self._pending: list[int] = []  # sampled, but not computed yet
        self._busy = False

    @property
    def tokens(self) -> list[int]:
        """All tokens of the session so far."""
        return [*self._sequence.tokens, *self._pending]

    @property
    def text(self) -> str:
        return self._tokenizer.decode(self.tokens)

    def __len__(self) -> int:
        return len(self._sequence) + len(self._pending)

    def feed(self, prompt: Prompt, *, special: bool = False) -> np.ndarray:
        """Computes text or token ids; the logits (n_vocab,) after the last token."""
        ids = self._ids(prompt, special)
        logits: np.ndarray = self._compute(ids, every=False)[-1]
        return logits

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Computes token ids; the logits after each of them: (n, n_vocab) float32."""
        given = self._ids(ids, False)
        return self._compute(given, every=True)[-len(given) :]

    def resume(self, ids: Sequence[int]) -> int:
        """Makes `ids` the tokens to continue from, keeping the longest common beginning.

        Says how many tokens are reused; the others are computed by the next call, at least the
        last one, as its logits are wanted.
        """
        wanted = self._ids(ids, False)
        have = self._sequence.tokens
        same = next(
            (i for i, (a, b) in enumerate(zip(have, wanted, strict=False)) if a != b), None
        )
        common = min(len(have), len(wanted)) if same is None else same
        left = self._rewind(min(common, len(wanted) - 1))
        self._pending = wanted[left:]
        return left

    def generate(
        self,
        prompt: Prompt = "",
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        special: bool = False,
        keep: int | None = None,
        logprobs: int = 0,
        sampling: Sampling | None = None,
        close_after: bool = False,
        **settings: Any,
    ) -> Generation:
        """Continues the session after `prompt`; the settings are those of `Model.generate`."""
        ids = self._take(self._ids(prompt, special) if len(prompt) or not len(self) else [])
        room = self._engine.runner.settings.ctx
        if len(self._sequence) + len(ids) >= room and max_tokens != 0:
            self._pending = ids
            raise full(len(self._sequence) + len(ids), room)
        limit = _whole("max_tokens", max_tokens, 0) if max_tokens is not None else 1 << 31
        job = Job(
            sequence=self._sequence,
            prompt=ids,
            sampler=self._sampler(sampling, settings, [*self._sequence.tokens, *ids]),
            max_tokens=limit,
            stop_ids=self._tokenizer.eog_ids,
            keep=-1 if keep is None else _keep(keep, room),
            logprobs=_whole("logprobs", logprobs, 0),
            done=lambda job: self._ended(job, close_after),
        )
        self._busy = True
        stops = [stop] if isinstance(stop, str) else list(stop)
        return Generation(self._engine, job, self._tokenizer, stop=stops)

    def fork(self) -> Session:
        """A second session with the same past; both go on by themselves."""
        sequence = self._call(lambda: self._engine.runner.cache.fork(self._sequence))
        other = Session(self._engine, self._tokenizer, self._fingerprint, sequence)
        other._pending = list(self._pending)
        return other

    def rewind(self, n: int) -> None:
        """Forgets all tokens from the n-th on."""
        n = _whole("n", n, 0)
        tokens = self.tokens
        if n > len(tokens):
            msg = "a session cannot be rewound to tokens that it does not have"
            raise OptionError(msg, where="n", expected=f"at most {len(tokens)}", got=n)
        left = self._rewind(min(n, len(self._sequence)))
        self._pending = tokens[left:n]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes tokens and state to a file that `Model.restore` reads; whole or not at all."""
        if self._pending:
            self._compute([], every=False)
        states = self._engine.runner.states
        self._call(lambda: store.save(Path(path), self._sequence, states, self._fingerprint))

    def close(self) -> None:
        """Gives the session's cells back."""
        self._call(lambda: self._engine.runner.cache.close(self._sequence))
        self._pending = []

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._engine.closed:
            self.close()

    # inside

    def _ids(self, prompt: Prompt, special: bool) -> list[int]:
        if isinstance(prompt, str):
            bos = None if not len(self) else False
            ids = self._tokenizer.encode(prompt, special=special, bos=bos, eos=False)
        else:
            self._tokenizer.check_ids(prompt)
            ids = [int(i) for i in prompt]
        if not ids and not len(self):
            msg = "the prompt is empty, and the model has no token to begin with"
            raise OptionError(msg, where="prompt", expected="some text", got=prompt)
        return ids

    def _take(self, ids: list[int]) -> list[int]:
        """The tokens to compute next: what is pending, and `ids`; never none."""
        ids, self._pending = [*self._pending, *ids], []
        if not ids:  # the logits of the last token are wanted again
            tokens = self._sequence.tokens[:]
            ids = tokens[self._rewind(len(tokens) - 1) :]
        return ids

    def _compute(self, ids: list[int], *, every: bool) -> np.ndarray:
        pending = self._pending
        ids = self._take(ids)
        try:
            return self._call(
                lambda: self._engine.runner.forward(self._sequence, ids, every=every)
            )
        except BaseException:
            self._pending = pending
            raise

    def _rewind(self, n: int) -> int:
        return self._call(lambda: self._engine.runner.cache.rewind(self._sequence, n))

    def _call(self, function: Callable[[], T]) -> T:
        if self._busy:
            msg = "the session is generating"
            raise OptionError(msg, do="read or close the generation first")
        return self._engine.call(function)

    def _sampler(
        self, sampling: Sampling | None, settings: dict[str, Any], history: list[int]
    ) -> Sampler:
        try:
            chosen = Sampling(**settings) if sampling is None else sampling
        except TypeError as error:
            known = ", ".join(Sampling.__annotations__)
            msg = "there is no such setting"
            raise OptionError(msg, expected=known, got=", ".join(settings)) from error
        breakers: frozenset[int] = frozenset()
        if chosen.dry_multiplier > 0:
            pieces = (self._tokenizer.decode([i]) for i in range(self._tokenizer.n_vocab))
            breakers = breaker_tokens(chosen.dry_breakers, pieces)
        n_vocab = self._engine.runner.definition.hparams.n_vocab
        return Sampler(chosen, n_vocab, prompt=history, breakers=breakers)

    def _ended(self, job: Job, close: bool) -> None:
        """On the engine's thread, at the end of a generation."""
        self._pending = [] if job.last is None else [job.last]
        self._busy = False
        if close:
            self._engine.runner.cache.close(self._sequence)


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 31:
        msg = f"{name} has a value that cannot be used"
        raise OptionError(msg, where=name, expected=f"a whole number from {least}", got=value)
    return value


def _keep(keep: int, ctx: int) -> int:
    _whole("keep", keep, 0)
    if keep > ctx - 4:
        msg = "so many kept tokens leave nothing to drop"
        raise OptionError(msg, where="keep", expected=f"at most {ctx - 4}", got=keep)
    return keep
