"""Drafts: cheap guesses at the next tokens, which the model checks in one step.

A draft changes no text, as the sampler chooses every token from the model's own logits. It only
lets one step compute several of them. Reference: "Fast Inference from Transformers via
Speculative Decoding" (Leviathan, Kalman, Matias 2022), for tokens that are drawn once.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from umbel.errors import OptionError
from umbel.runner import Runner
from umbel.state import Sequence as Seq

LOOKUP = "lookup"  # what users call it
LONGEST = 15  # tokens of a draft, unless told otherwise: then a step has 16
NGRAM = 3  # shorter ones are found everywhere, and little comes of them
PADDING = 128  # by so many tokens at its end may one vocabulary be longer
ROLES = 5  # the first tokens are control tokens, whose names differ between files


class Proposer(Protocol):
    """Guesses what comes next, on the engine's thread."""

    runners: Sequence[Runner]  # that compute for it: they are cancelled with the model's

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """`n` tokens that may follow, or fewer, or none."""


class Lookup:
    """What followed the last tokens when they stood in the text before."""

    runners: Sequence[Runner] = ()

    def propose(self, tokens: list[int], n: int) -> list[int]:
        if len(tokens) <= NGRAM:
            return []
        text = np.array(tokens)
        past = np.lib.stride_tricks.sliding_window_view(text[:-1], NGRAM)
        found = np.flatnonzero((past == text[-NGRAM:]).all(axis=1))
        made = list(tokens)
        for last in found[-1:].tolist():
            for at in range(last + NGRAM, last + NGRAM + n):
                made.append(made[at])  # goes on into itself, where the text goes round
        return made[len(tokens) :]


class DraftModel:
    """A smaller model of the same vocabulary, and its best tokens.

    It has one sequence: whatever it is asked about, it computes what it does not have yet.
    """

    def __init__(self, runner: Runner, n_vocab: int) -> None:
        self.runners: Sequence[Runner] = (runner,)
        self._sequence = Seq()
        self._n_vocab = min(n_vocab, runner.definition.hparams.n_vocab)

    def propose(self, tokens: list[int], n: int) -> list[int]:
        (runner,), sequence = self.runners, self._sequence
        n = min(n, runner.settings.ctx - len(tokens))
        if n < 1 or max(tokens) >= self._n_vocab:
            return []
        pairs = enumerate(zip(sequence.tokens, tokens[:-1], strict=False))
        same = next((i for i, (a, b) in pairs if a != b), len(tokens) - 1)
        there = runner.cache.rewind(sequence, same)
        logits = runner.forward(sequence, tokens[there:])
        runner.cache.snapshot(sequence)  # a recurrent state comes back to here
        made: list[int] = []
        while True:
            made.append(int(logits[0, : self._n_vocab].argmax()))
            if len(made) == n:
                return made
            logits = runner.decode([sequence], made[-1:])


def check_vocabulary(tokens: Sequence[str], drafted: Sequence[str]) -> None:
    """Refuses a draft model whose tokens mean something else."""
    expected, got = (f"{len(given)} tokens" for given in (tokens, drafted))
    same = abs(len(tokens) - len(drafted)) <= PADDING
    for i, (one, other) in enumerate(zip(tokens, drafted, strict=False)):
        if same and one != other and i >= ROLES:
            same, expected, got = False, f"token {i} is {one!r}", repr(other)
    if not same:
        msg, do = "the draft model has another vocabulary", "take one of the same family"
        raise OptionError(msg, where="draft", expected=expected, got=got, do=do)
