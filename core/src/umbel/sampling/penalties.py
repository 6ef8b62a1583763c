"""The samplers that lower the scores of what was said before: repetition penalties and DRY.

Repetition penalty: Keskar et al., "CTRL" (2019); frequency and presence penalty as the OpenAI
API defines them; DRY: p-e-w, "Don't Repeat Yourself" (2024), a penalty that grows with the
length of the repeated run. Both change `scores` in place; `ids` are the candidates' tokens in
rising order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from umbel.sampling.filters import Positions, Scores
from umbel.sampling.settings import Settings

Ids = NDArray[np.intp]

# A run this much longer than allowed is as bad as one that is longer still: the penalty is far
# beyond any logit, and there is no need to measure on, nor to overflow.
_LONGEST_OVER = 128


def repetition(ids: Ids, scores: Scores, history: Sequence[int], s: Settings) -> None:
    """Repetition, frequency and presence penalty over the last `penalty_last_n` tokens."""
    tokens, counts = np.unique(_newest(history, s.penalty_last_n), return_counts=True)
    at, found = _find(ids, tokens)
    old = scores[at]
    scaled = np.where(old > 0, old / s.repeat_penalty, old * s.repeat_penalty)
    scores[at] = scaled - counts[found] * s.frequency_penalty - s.presence_penalty


def dry(
    ids: Ids, scores: Scores, history: Sequence[int], s: Settings, breakers: Collection[int]
) -> None:
    """Lower each token that would prolong a run of tokens which the context already holds.

    A run does not reach across a breaker, and a breaker is never lowered itself.
    """
    recent = _newest(history, s.dry_last_n)
    backwards = enumerate(reversed(recent.tolist()))
    unbroken = next((i for i, token in backwards if token in breakers), len(recent))
    runs = _runs(recent, min(unbroken, s.dry_allowed_length + _LONGEST_OVER))
    tokens = np.array(sorted(t for t in runs if t not in breakers), dtype=np.intp)
    at, found = _find(ids, tokens)
    over = np.array([runs[t] - s.dry_allowed_length for t in tokens[found].tolist()], float)
    scores[at] -= np.where(over >= 0, s.dry_multiplier * s.dry_base**over, 0.0)


def breaker_tokens(breakers: Sequence[str], pieces: Iterable[str]) -> frozenset[int]:
    """The ids of the tokens whose text holds one of the breakers; `pieces` are the texts by id.

    DRY sees tokens, not text: a breaker that no token holds whole breaks nothing.
    """
    return frozenset(
        i for i, piece in enumerate(pieces) if any(breaker in piece for breaker in breakers)
    )


def _newest(history: Sequence[int], last_n: int) -> Ids:
    """The newest `last_n` tokens; -1 is all."""
    start = 0 if last_n < 0 else max(len(history) - last_n, 0)
    return np.array(history[start:], dtype=np.intp)


def _runs(recent: Ids, longest: int) -> dict[int, int]:
    """By token: how much of the context's end has stood before that token earlier on.

    >>> _runs(np.array([1, 2, 3, 9, 2, 3]), 10)  # "2 3" was followed by 9
    {9: 2}
    """
    if not longest:
        return {}
    ends = np.flatnonzero(recent[:-1] == recent[-1])
    lengths = np.ones(len(ends), dtype=np.intp)
    alive = np.arange(len(ends))
    for back in range(1, longest):
        alive = alive[ends[alive] >= back]
        alive = alive[recent[ends[alive] - back] == recent[-1 - back]]
        if not len(alive):
            break
        lengths[alive] = back + 1
    runs: dict[int, int] = {}
    for token, length in zip(recent[ends + 1].tolist(), lengths.tolist(), strict=True):
        runs[token] = max(length, runs.get(token, 0))
    return runs


def _find(ids: Ids, tokens: Ids) -> tuple[Positions, Positions]:
    """Where the tokens stand among the candidates, and which of them do."""
    at = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    found = np.flatnonzero(ids[at] == tokens)
    return at[found], found
