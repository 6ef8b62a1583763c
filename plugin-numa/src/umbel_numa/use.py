"""How often each expert of a mixture is chosen: counted while the model writes, and remembered.

What is remembered belongs to a file of weights. It says where experts lie, and changes no
result.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel_numa import tuned

if TYPE_CHECKING:
    import umbel

    from umbel_numa.engine import Engine, Use

_KEY = "experts"  # in the file of what is remembered
_HEAD = 1 << 16  # bytes of a file of weights that, with its size, tell it from others
_PROMPT = "The"
_TRIALS = 200


def counted(model: umbel.Model, engine: Engine, tokens: int) -> Use:
    """By weight, while the model writes so many tokens by chance; empty: it has no experts, or
    none that are packed."""
    weights = list(engine.weights)
    for weight in weights:
        weight.count(True)
    if any(weight.chosen is not None for weight in weights):
        begin = model.tokenizer.encode(_PROMPT)[:1]  # of one token: any context has room for it
        onwards = dict.fromkeys(model.tokenizer.vocab.ends, float("-inf"))  # no end before
        how: dict[str, Any] = {"temperature": 1.0, "seed": 0, "logit_bias": onwards}
        model.generate(begin, max_tokens=tokens, **how).read()
    found = {w.tensor.name: w.chosen.tolist() for w in weights if w.chosen is not None}
    for weight in weights:
        weight.count(False)
    return found


def busiest(chosen: Sequence[int], used: int, first: Sequence[int]) -> float:
    """The part of the reads that the busiest node has on the average, where a token has `used`
    experts, and node k those from first[k] on."""
    rng, odds = np.random.default_rng(0), np.array(chosen) + 1.0  # what was not chosen may be
    drawn = [
        rng.choice(len(odds), used, replace=False, p=odds / odds.sum()) for _ in range(_TRIALS)
    ]
    nodes = [np.bincount(np.searchsorted(first[1:], some, "right")) for some in drawn]
    return float(np.mean([counts.max() for counts in nodes])) / used


# what is remembered


def remember(engine: Engine, use: Use) -> None:
    found: dict[str, dict[str, Sequence[int]]] = {}  # by file
    for weight in list(engine.weights):
        if weight.tensor.name in use and weight.file is not None:
            of = found.setdefault(_identity(weight.file), {})
            of[weight.tensor.name] = use[weight.tensor.name]
    tuned.save(_KEY, _known() | found)


def recall(file: mmap.mmap) -> Use:
    """What is known of the weights of this file; what was changed by hand may be anything."""
    found = _known().get(_identity(file))
    return {
        name: chosen
        for name, chosen in (found.items() if isinstance(found, dict) else ())
        if isinstance(chosen, list) and all(type(n) is int and n >= 0 for n in chosen)
    }


def forget() -> bool:
    """Whether there was anything."""
    known = bool(_known())
    tuned.save(_KEY, {})
    return known


def _known() -> dict[str, Any]:
    found = tuned.load().get(_KEY)
    return found if isinstance(found, dict) else {}


def _identity(file: mmap.mmap) -> str:
    return hashlib.sha256(file[:_HEAD] + str(len(file)).encode()).hexdigest()[:16]
