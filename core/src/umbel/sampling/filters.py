"""The samplers that narrow the choice: top-k, top-p, min-p, typical, XTC, Mirostat's cut.

Each takes the scores of the candidates, in the order of their token ids, and returns the
positions to keep, in the same order and never none; or None to keep all. Equal scores rank by
token id, so that every answer is defined by the numbers alone.

Typical: Meister et al., "Locally Typical Sampling" (2022). XTC: p-e-w, "Exclude Top Choices"
(2024). Mirostat: Basu et al. (2021), algorithm 2, with the surprise taken after the cut, as
llama.cpp takes it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]  # (candidates,), finite
Positions = NDArray[np.intp]


def log_softmax(scores: NDArray[Any]) -> Scores:
    """Natural logarithms of the probabilities; -inf stays -inf."""
    shifted = scores.astype(np.float64) - float(scores.max())
    return np.asarray(shifted - math.log(np.exp(shifted).sum()))


def softmax(scores: Scores) -> Scores:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def top_k(scores: Scores, k: int) -> Positions | None:
    """The k best."""
    n = len(scores)
    if not 0 < k < n:
        return None
    # A partition is linear, sorting a vocabulary is not; ties at its edge go to the lowest ids.
    edge = np.partition(scores, n - k)[n - k]
    above = np.flatnonzero(scores > edge)
    level = np.flatnonzero(scores == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def top_p(scores: Scores, p: float) -> Positions | None:
    """The fewest best whose probabilities reach p (the nucleus)."""
    if p >= 1:
        return None
    probabilities = softmax(scores)
    # All that lie below this hold less than half of 1 - p: the nucleus needs none of them, and
    # the long tail of a vocabulary is not sorted.
    likely = np.flatnonzero(probabilities > (1 - p) / (2 * len(scores)))
    return likely[_until(-scores[likely], probabilities[likely], p)]


def typical(scores: Scores, p: float) -> Positions | None:
    """The fewest, nearest to the expected surprise first, whose probabilities reach p."""
    if p >= 1:
        return None
    surprise = -log_softmax(scores)
    probabilities = np.exp(-surprise)
    entropy = float(probabilities @ surprise)
    return _until(np.abs(surprise - entropy), probabilities, p)


def _until(rank: Scores, probabilities: Scores, p: float) -> Positions:
    """The positions, by rising rank, up to the one at which the probabilities sum up to p."""
    order = np.argsort(rank, kind="stable")
    reached = int(np.searchsorted(np.cumsum(probabilities[order]), p))
    return np.sort(order[: reached + 1])


def min_p(scores: Scores, p: float) -> Positions | None:
    """Those at least p times as probable as the best."""
    if p <= 0:
        return None
    return np.flatnonzero(scores >= scores.max() + math.log(p))


def xtc(scores: Scores, threshold: float) -> Positions | None:
    """All but those that reach the threshold; of these the least probable stays."""
    likely = np.flatnonzero(softmax(scores) >= threshold)
    if len(likely) < 2:
        return None
    last = len(likely) - 1 - int(np.argmin(scores[likely][::-1]))  # in rank: of equals the last
    return np.delete(np.arange(len(scores)), np.delete(likely, last))


def surprise_cut(scores: Scores, most: float) -> Positions:
    """Those that surprise by at most so many bits, or else the best alone."""
    bits = -log_softmax(scores) / math.log(2)
    keep = np.flatnonzero(bits <= most)
    return keep if len(keep) else np.array([np.argmax(scores)])
