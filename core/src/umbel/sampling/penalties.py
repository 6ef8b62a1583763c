"""The samplers that lower the scores of what was said before: repetition penalties and DRY.

Repetition penalty: Keskar et al., "CTRL" (2019); frequency and presence penalty as the OpenAI
API defines them; DRY: p-e-w, "Don't Repeat Yourself" (2024), a penalty that grows with the
length of the repeated run. Both change `scores` in place; `ids` are the candidates' tokens in
rising order.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from umbel.sampling.filters import Array
from umbel.sampling.settings import Settings

# A run this much longer than allowed is as bad as one that is longer still: the penalty is far
# beyond any logit, and there is no need to measure on, nor to overflow.
_LONGEST_OVER = 128


def repetition(ids: Array, scores: Array, history: Sequence[int], s: Settings) -> None:
    """Repetition, frequency and presence penalty over the last `penalty_last_n` tokens."""
    tokens, counts = np.unique(_newest(history, s.penalty_last_n), return_counts=True)
    at, found = _find(ids, tokens)
    old = scores[at]
    scaled = np.where(old > 0, old / s.repeat_penalty, old * s.repeat_penalty)
    scores[at] = scaled - counts[found] * s.frequency_penalty - s.presence_penalty


def dry(
    ids: Array, scores: Array, history: Sequence[int], s: Settings, breakers: Collection[int]
) -> None:
    """Lower each token that would prolong a run of tokens which the context already holds.

    A run does not reach across a breaker, and a breaker is never lowered itself.
    """
    recent = _newest(history, s.dry_last_n)
    runs = _runs(recent, s.dry_allowed_length + _LONGEST_OVER, breakers)
    long = [t for t, n in runs.items() if n >= s.dry_allowed_length and t not in breakers]
    at, found = _find(ids, long)
    over = np.array([runs[t] for t in long], float)[found] - s.dry_allowed_length
    scores[at] -= s.dry_multiplier * s.dry_base**over


def breaker_tokens(breakers: Sequence[str], pieces: Iterable[str]) -> frozenset[int]:
    """The ids of the tokens whose text holds one of the breakers; `pieces` are the texts by id.

    DRY sees tokens, not text: a breaker that no token holds whole breaks nothing.
    """
    return frozenset(
        i for i, piece in enumerate(pieces) if any(breaker in piece for breaker in breakers)
    )


def _newest(history: Sequence[int], last_n: int) -> Array:
    """The newest `last_n` tokens; -1 is all."""
    start = 0 if last_n < 0 else max(len(history) - last_n, 0)
    return np.array(history[start:], dtype=np.intp)


def _runs(recent: Array, longest: int, breakers: Collection[int]) -> dict[int, int]:
    """By token: how much of the context's end has stood before that token earlier on.

    >>> _runs(np.array([1, 2, 3, 9, 2, 3]), 10, ())  # "2 3" was followed by 9
    {9: 2}
    """
    runs: dict[int, int] = {}
    length = 0
    ends = np.arange(len(recent) - 1)
    while len(ends) and length < longest and recent[-1 - length] not in breakers:
        length += 1
        ends = ends[ends >= length - 1]
        ends = ends[recent[ends - length + 1] == recent[-length]]
        runs |= dict.fromkeys(recent[ends + 1].tolist(), length)
    return runs


def _find(ids: Array, tokens: Array | list[int]) -> tuple[Array, Array]:
    """Where the tokens stand among the candidates, and which of them do."""
    at = np.searchsorted(ids, tokens)
    found = np.flatnonzero(ids.take(at, mode="clip") == tokens)
    return at[found], found
