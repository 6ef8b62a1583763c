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

from umbel.errors import OptionError, UmbelError
from umbel.generation import Generation, Job, Output
from umbel.loading import number
from umbel.sampling import Sampler, breaker_tokens
from umbel.sampling import Settings as Sampling
from umbel.state import Sequence as Seq
from umbel.state import store
from umbel.text import Tokenizer

if TYPE_CHECKING:
    from umbel.model import Model

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Prompt = str | bytes | Sequence[int]
UNLIMITED = 1 << 31


def _alone(method: F) -> F:
    """One thread at a time: what was checked stays so until it is acted on."""

    @wraps(method)
    def locked(self: Session, *args: Any, **settings: Any) -> Any:
        with self._lock:
            return method(self, *args, **settings)

    return cast("F", locked)


class Session:
    """One sequence of tokens. Its methods wait for the engine; Ctrl-C stops them.

    What fails or is stopped leaves the session as it was. While a generation of it runs and is
    not read to its end, all other methods are refused. Use it in a `with` block, or close it:
    its place is needed by others. `transient`: it closes itself after a generation.
    """

    def __init__(self, model: Model, *, transient: bool = False) -> None:
        self._model = model
        self._engine = model.engine
        self._tokenizer = model.tokenizer
        self._sequence = Seq()
        self._transient = transient
        self._pending: list[int] = []  # tokens that are not computed yet
        self._generation: weakref.ref[Generation] | None = None
        self._lock = threading.RLock()
        self._closed = False

    @property
    def tokens(self) -> list[int]:
        """All tokens of the session so far."""
        self._running()
        return [*self._sequence.tokens, *self._pending]

    @property
    def text(self) -> str:
        return self._tokenizer.decode(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @_alone
    def feed(self, prompt: Prompt = "", *, special: bool = False) -> np.ndarray:
        """Computes text or token ids; the logits (n_vocab,) float32 after the last token.

        Without a prompt they are those of the last token that is there.
        """
        logits: np.ndarray = self._compute(self._ids(prompt, special), every=False)[-1]
        return logits

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
        wanted = self._ids(prompt, special, some=True, start=True)
        pairs = zip(self._sequence.tokens, wanted[:-1], strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(wanted) - 1)
        return self._become(wanted, 0 if self._sequence.shifts else same)

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
        sampling: Sampling | None = None,
        **settings: Any,
    ) -> Generation:
        """Continues the session after `prompt`; the settings are those of `Model.generate`."""
        runner = self._engine.runner
        ctx, n_vocab = runner.settings.ctx, runner.definition.hparams.n_vocab
        limit = UNLIMITED if max_tokens is None else number("max_tokens", max_tokens, 0)
        # Less than four tokens to drop would be shifting all the time.
        kept = -1 if keep is None else number("keep", keep, 0, ctx - 5)
        alternatives = -1 if logprobs is None else number("logprobs", logprobs, 0, n_vocab)
        chosen = _sampling(sampling, settings)
        stops = [stop] if isinstance(stop, str) else () if stop is None else stop
        ids = self._due(self._ids(prompt, special))
        history = [*self._sequence.tokens, *ids]
        runner.check_room(len(history), answer=limit > 0)
        dry = chosen.dry_multiplier > 0
        breakers = _breakers(self._tokenizer, chosen.dry_breakers) if dry else ()
        job = Job(
            sequence=self._sequence,
            prompt=ids,
            sampler=Sampler(chosen, n_vocab, prompt=history, breakers=breakers),
            output=Output(self._tokenizer, history, stops),
            max_tokens=limit,
            stop_ids=self._tokenizer.eog_ids,
            keep=kept,
            logprobs=alternatives,
            pending=self._pending,
            done=self._settle,
        )
        generation = Generation(self._engine, job)
        self._generation = weakref.ref(generation)
        return generation

    @_alone
    def fork(self) -> Session:
        """A second session with the same past; both go on by themselves."""
        other = Session(self._model)
        other._sequence = self._call(lambda: self._engine.runner.cache.fork(self._sequence))
        other._pending = list(self._pending)
        return other

    @_alone
    def rewind(self, n: int) -> None:
        """Forgets all tokens from the n-th on."""
        self._become(self.tokens[: number("n", n, 0, len(self))], n)

    @_alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes tokens and state to a file that `Model.restore` reads; whole or not at all."""
        self._check_free()
        if self._pending:
            self._compute([], every=False)
        states, name = self._engine.runner.states, self._model.fingerprint
        self._call(lambda: store.save(path, self._sequence, states, name))

    @_alone
    def close(self) -> None:
        """Stops what it generates and gives its place back; it is empty then."""
        generation = self._running()
        if generation is not None:
            generation.close()
        with contextlib.suppress(UmbelError):  # the model is closed, and so is all of it
            self._become([], 0)
        self._closed = True

    def __enter__(self) -> Session:
        return self

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
        self._check_free()
        starts = start or not len(self)
        if isinstance(prompt, str | bytes):
            if not prompt and not starts:
                return []
            bos = None if starts else False
            ids = self._tokenizer.encode(prompt, special=special, bos=bos, eos=False)
            if not ids and self._tokenizer.bos_id is not None:
                ids = [self._tokenizer.bos_id]  # also where other texts begin without it
        else:
            ids = list(prompt) if hasattr(prompt, "__iter__") else []
            self._tokenizer.check_ids(ids)
            ids = [int(i) for i in ids]
        if not ids and (some or starts):
            msg = "the prompt is empty, and there is no token to begin with"
            raise OptionError(msg, where="prompt", expected="text or token ids", got=prompt)
        return ids

    def _due(self, ids: list[int]) -> list[int]:
        """The tokens to compute next: those that are pending, and `ids`; never none."""
        if not ids and not self._pending:  # the logits of the last token are wanted again
            self._become(self.tokens, len(self) - 1)
        return [*self._pending, *ids]

    def _become(self, tokens: list[int], computed: int) -> int:
        """Makes `tokens` what the session holds; `computed` of them at most stay computed.

        Says how many do.
        """

        def become() -> int:
            sequence = self._sequence
            left = self._engine.runner.cache.rewind(sequence, computed)
            self._pending = tokens[left:]
            if not left:
                sequence.shifts = 0
            return left

        return self._call(become)

    def _compute(self, ids: list[int], *, every: bool) -> np.ndarray:
        runner, due = self._engine.runner, self._due(ids)

        def compute() -> np.ndarray:
            logits = runner.forward(self._sequence, due, every=every)
            self._pending = []
            runner.cache.snapshot(self._sequence)
            return logits

        return self._call(compute)

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

    def _call(self, function: Callable[[], T]) -> T:
        self._check_free()
        return self._engine.call(function)

    def _settle(self, job: Job) -> None:
        """On the engine's thread, when a generation has ended."""
        cache = self._engine.runner.cache
        if self._transient:
            cache.close(self._sequence)
            return
        tokens = [*self._sequence.tokens, *job.pending]
        unread = 0 if job.wanted is None else job.sampled - job.wanted
        left = cache.rewind(self._sequence, len(tokens) - unread)
        self._pending = tokens[left : len(tokens) - unread]


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
