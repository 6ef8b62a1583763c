"""A session: one sequence with its state, to be fed, continued, forked, rewound and saved."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import numpy as np

from umbel.adapters import Wanted
from umbel.errors import OptionError, UmbelError
from umbel.extras import grammar
from umbel.generation import Generation, Job, Output
from umbel.loading import number
from umbel.sampling import Sampler, breaker_tokens
from umbel.sampling import Settings as Sampling
from umbel.state import Mix, store
from umbel.state import Sequence as Seq
from umbel.text import Tokenizer

if TYPE_CHECKING:
    from umbel.model import Model

F = TypeVar("F", bound=Callable[..., Any])
Prompt = str | bytes | Sequence[int]
UNLIMITED = 1 << 31


def _alone(method: F) -> F:
    """One thread at a time, and no generation: what was checked stays so until the end."""

    @wraps(method)
    def locked(self: Session, *args: Any, **settings: Any) -> Any:
        with self._lock:
            self._check_free()
            return method(self, *args, **settings)

    return cast("F", locked)


class Session(contextlib.AbstractContextManager["Session"]):
    """One sequence of tokens. Its methods wait for the engine; Ctrl-C stops them.

    What fails or is stopped leaves the session as it was. While a generation of it runs and is
    not read to its end, all other methods are refused. Use it in a `with` block, or close it:
    its place is needed by others.
    """

    def __init__(self, model: Model, adapters: Mix = ()) -> None:
        self.model = model
        self._engine = model.engine
        self._tokenizer = model.tokenizer
        self._sequence = Seq(adapters=adapters)
        self._tokens: list[int] = []  # those of the sequence, and then others that are due
        self._transient = False  # gives its place back after a generation
        self._generation: weakref.ref[Generation] | None = None
        self._lock = threading.RLock()
        self._closed = False

    @property
    def tokens(self) -> list[int]:
        """All tokens of the session so far."""
        self._running()
        return list(self._tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @_alone
    def feed(self, prompt: Prompt = "", *, special: bool = False) -> np.ndarray:
        """Computes text or token ids; the logits (n_vocab,) float32 after the last token.

        Without a prompt they are those of the last token that is there.
        """
        return self._compute(self._ids(prompt, special), every=False).reshape(-1)

    @_alone
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Computes token ids; the logits after each of them: (n, n_vocab) float32."""
        given = self._ids(ids, some=True)
        return self._compute(given, every=True)[-len(given) :]

    @_alone
    def resume(self, prompt: Prompt, *, special: bool = False) -> int:
        """Makes `prompt`, from its first token on, what the session holds.

        Says how many tokens are reused: the longest beginning that is computed already (a
        recurrent state goes back to a snapshot). The others are computed by the next call, at
        least the last one, as its logits are wanted. A shifted context is not reused: its
        states know of what was dropped.
        """
        wanted = self._ids(prompt, special, start=True)
        pairs = zip(self._sequence.tokens, wanted[:-1], strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(wanted) - 1)
        self._become(wanted, 0 if self._sequence.shifts else same)
        return len(self._sequence)

    @_alone
    def generate(
        self,
        prompt: Prompt = "",
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str | None = None,
        special: bool = False,
        keep: int | None = None,
        logprobs: int | None = None,
        draft_max: int | None = None,
        show_special: bool = False,
        notify: Callable[[], None] | None = None,
        sampling: Sampling | None = None,
        **settings: Any,
    ) -> Generation:
        """Continues the session after `prompt`; the settings are those of `Model.generate`."""
        engine, runner = self._engine, self._engine.runner
        ctx, n_vocab = runner.settings.ctx, runner.definition.hparams.n_vocab
        limit = UNLIMITED if max_tokens is None else number("max_tokens", max_tokens, 0)
        # Less than four tokens to drop would be shifting all the time.
        kept = -1 if keep is None else number("keep", keep, 0, ctx - 5)
        alternatives = -1 if logprobs is None else number("logprobs", logprobs, 0, n_vocab)
        drafts = engine.draft_max if draft_max is None else number("draft_max", draft_max, 0)
        if drafts and engine.draft is None:
            msg, do = "the model has no drafts", 'load it with draft="lookup" or a draft model'
            raise OptionError(msg, where="draft_max", got=draft_max, do=do)
        chosen = _sampling(sampling, settings)
        constraint = self._constraint(chosen)
        stops = [stop] if isinstance(stop, str) else () if stop is None else stop
        ids = self._ids(prompt, special)
        self._reopen(ids)
        history = [*self._tokens, *ids]
        runner.check_room(len(history), answer=limit > 0)
        dry = chosen.dry_multiplier > 0
        breakers = _breakers(self._tokenizer, chosen.dry_breakers) if dry else ()
        job = Job(
            sequence=self._sequence,
            tokens=self._tokens,
            prompt=ids,
            sampler=Sampler(
                chosen, n_vocab, prompt=history, breakers=breakers, constraint=constraint
            ),
            output=Output(
                self._tokenizer,
                history,
                stops,
                special=show_special,
                exact=constraint is not None,
            ),
            max_tokens=limit,
            stop_ids=self._tokenizer.vocab.ends,
            keep=kept,
            logprobs=alternatives,
            draft_max=drafts,
            transient=self._transient,
            notify=notify,
            owner=self,
        )
        generation = Generation(engine, job)
        self._generation = weakref.ref(generation)
        return generation

    @_alone
    def fork(self) -> Session:
        """A second session with the same past; both go on by themselves."""
        other = Session(self.model)
        cache = self._engine.runner.cache
        other._sequence = self._engine.call(lambda: cache.fork(self._sequence))
        other._tokens = list(self._tokens)
        return other

    @_alone
    def use(self, adapters: Wanted) -> None:
        """Goes on with these adapters (None: those given to `Model.load`).

        Where they are others than before, all tokens are computed again: no state knows of two.
        """
        mix = self.model.mix(adapters)
        if mix != self._sequence.adapters:
            self._become(self._tokens, 0)
            self._sequence.adapters = mix

    @_alone
    def rewind(self, n: int) -> None:
        """Forgets all tokens from the n-th on."""
        self._become(self.tokens[: number("n", n, 0, len(self))], n)

    @_alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes tokens and state to a file that `Model.restore` reads; whole or not at all."""
        if len(self._sequence) < len(self._tokens):
            self._compute([], every=False)
        states, name = self._engine.runner.states, self.model.fingerprint
        self._engine.call(lambda: store.save(path, self._sequence, states, name))

    def close(self) -> None:
        """Stops what it generates and gives its place back; it is empty then."""
        with self._lock:
            if generation := self._running():
                generation.close()
            with contextlib.suppress(UmbelError):  # the model is closed, and so is all of it
                self._become([], 0)
            self._closed = True

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        sequence, cache = self._sequence, self._engine.runner.cache
        if len(sequence):
            with contextlib.suppress(UmbelError, RuntimeError):  # the process ends
                self._engine.post(lambda: cache.close(sequence))

    # inside

    def _ids(
        self, prompt: Prompt, special: bool = False, *, some: bool = False, start: bool = False
    ) -> list[int]:
        """The token ids of a prompt; `start`: it is a whole text, else it goes on."""
        starts = start or not self._tokens
        if isinstance(prompt, str | bytes):
            if not prompt and not starts:
                return []
            ids = self._tokenizer.encode(prompt, special=special, bos=starts, eos=False)
            if not ids and self._tokenizer.bos_id is not None:
                ids = [self._tokenizer.bos_id]  # also where other texts begin without it
        else:
            ids = self._tokenizer.check_ids(prompt if hasattr(prompt, "__iter__") else ())
        if not ids and (some or starts):
            msg = "the prompt is empty, and there is no token to begin with"
            raise OptionError(msg, where="prompt", expected="text or token ids", got=prompt)
        return ids

    def _constraint(self, settings: Sampling) -> grammar.Constraint | None:
        """What the text must obey, if anything."""
        if settings.constraint is None:
            return None
        text = grammar.checked(*settings.constraint)
        return grammar.Constraint(self.model.vocabulary, text)

    def _reopen(self, ids: list[int]) -> None:
        """Without new tokens the last one is due again: its logits are wanted."""
        if not ids and len(self._sequence) == len(self._tokens):
            self._become(self._tokens, len(self._tokens) - 1)

    def _become(self, tokens: list[int], computed: int) -> None:
        """Makes `tokens` what the session holds; `computed` of them at most stay computed."""

        def become() -> None:
            if not self._engine.runner.cache.rewind(self._sequence, computed):
                self._sequence.shifts = 0
            self._tokens = tokens

        self._engine.call(become)

    def _compute(self, ids: list[int], *, every: bool) -> np.ndarray:
        self._reopen(ids)
        runner, tokens = self._engine.runner, [*self._tokens, *ids]

        def compute() -> np.ndarray:
            due = tokens[len(self._sequence) :]
            logits = runner.forward(self._sequence, due, every=every)
            self._tokens = tokens
            runner.cache.snapshot(self._sequence)
            return logits

        return self._engine.call(compute)

    def _running(self) -> Generation | None:
        """The generation that is not at its end; one that nobody holds has been stopped."""
        generation = self._generation() if self._generation else None
        if generation is None and self._generation:
            with contextlib.suppress(UmbelError):  # the model is closed
                self._engine.call(lambda: None)
            self._generation = None
        return generation if generation and generation.finish_reason is None else None

    def _check_free(self) -> None:
        if self._closed:
            msg = "the session is closed"
            raise OptionError(msg, do="open another one")
        if self._running() is not None:
            msg = "the session is generating"
            raise OptionError(msg, do="read or close the generation first")


def _sampling(given: Sampling | None, settings: dict[str, Any]) -> Sampling:
    try:
        return attrs.evolve(given or Sampling(), **settings)
    except TypeError as error:
        known = ", ".join(f.name for f in attrs.fields(Sampling))
        msg = "there is no such setting"
        raise OptionError(msg, expected=known, got=", ".join(settings)) from error


@lru_cache(maxsize=4)
def _breakers(tokenizer: Tokenizer, texts: tuple[str, ...]) -> frozenset[int]:
    """The tokens at which DRY stops: found by a look at the whole vocabulary."""
    pieces = (tokenizer.decode([i]) for i in range(tokenizer.n_vocab))
    return breaker_tokens(texts, pieces)
