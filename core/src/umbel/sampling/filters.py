"""The samplers that narrow the choice: top-k, top-p, min-p, typical, XTC, Mirostat's cut.

Each takes the scores of the candidates (float64 and finite), in the order of their token ids,
and returns the positions to keep, in the same order and never none. Equal scores rank by token
id, so that every answer is defined by the numbers alone.

Typical: Meister et al., "Locally Typical Sampling" (2022). XTC: p-e-w, "Exclude Top Choices"
(2024). Mirostat: Basu et al. (2021), algorithm 2, with the surprise taken after the cut, as
llama.cpp takes it.
"""

import math

import numpy as np

Array = np.ndarray
_BLOCK = 64  # scores in a group of which only the best is looked at first


def log_softmax(scores: Array) -> Array:
    """Natural logarithms of the probabilities; -inf stays -inf."""
    shifted: Array = scores.astype(np.float64) - scores.max()
    shifted -= math.log(np.exp(shifted).sum())
    return shifted


def top_k(scores: Array, k: int) -> Array:
    """The k best."""
    k, blocks = min(k, len(scores)), len(scores) // _BLOCK
    if k < blocks:  # of k groups the best are candidates: what is below all of them is not
        highest = scores[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)
        likely = np.flatnonzero(scores >= np.partition(highest, -k)[-k])
        return likely.take(_best(scores[likely], k))
    return _best(scores, k)


def _best(scores: Array, k: int) -> Array:
    # A partition is linear, sorting is not; ties at its edge go to the lowest ids.
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    level = np.flatnonzero(scores == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def top_p(scores: Array, p: float) -> Array:
    """The fewest best whose probabilities reach p (the nucleus)."""
    probabilities = np.exp(log_softmax(scores))
    # All that lie below this hold less than half of 1 - p: the nucleus needs none of them, and
    # the long tail of a vocabulary is not sorted.
    likely = np.flatnonzero(probabilities > (1 - p) / (2 * len(scores)))
    return likely.take(_until(-scores[likely], probabilities[likely], p))


def typical(scores: Array, p: float) -> Array:
    """The fewest, nearest to the expected surprise first, whose probabilities reach p."""
    surprise = -log_softmax(scores)
    probabilities = np.exp(-surprise)
    entropy = float(probabilities @ surprise)
    return _until(np.abs(surprise - entropy), probabilities, p)


def _until(rank: Array, probabilities: Array, p: float) -> Array:
    """The positions, by rising rank, up to the one at which the probabilities sum up to p."""
    order = np.argsort(rank, kind="stable")
    reached = int(np.searchsorted(np.cumsum(probabilities[order]), p))
    return np.sort(order[: reached + 1])


def min_p(scores: Array, p: float) -> Array:
    """Those at least p times as probable as the best."""
    return np.flatnonzero(scores >= scores.max() + math.log(p))


def xtc(scores: Array, threshold: float) -> Array:
    """All but those that reach the threshold; of these the least probable stays."""
    likely = np.flatnonzero(np.exp(log_softmax(scores)) >= threshold)
    least = likely[scores[likely] == scores[likely].min(initial=math.inf)]
    excluded = np.setdiff1d(likely, least[-1:])  # of equals the last is the least
    return np.delete(np.arange(len(scores)), excluded)


def surprise_cut(scores: Array, most: float) -> Array:
    """Those that surprise by at most so many bits, or else the best alone."""
    bits = -log_softmax(scores) / math.log(2)
    keep = np.flatnonzero(bits <= most)
    return keep if len(keep) else np.array([np.argmax(scores)])
