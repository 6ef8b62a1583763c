"""Embeddings: whole texts to vectors, by pooling the hidden states of their tokens."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from umbel.engine import Engine
from umbel.errors import OptionError, UnsupportedModelError
from umbel.runner import Runner
from umbel.state import Mix

POOL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
}
STATED = {1: "mean", 2: "cls", 3: "last"}  # the key `pooling_type`; 0 leaves it open
RANK = 4


def pooling(runner: Runner, asked: str | None) -> str:
    """The way of pooling that was asked for, or that of the file."""
    if asked is None:
        stated = runner.definition.hparams.meta.count("pooling_type", 0)
        if stated == RANK:
            msg = "the model ranks texts: it is made for scores, not for embeddings"
            do = "name a pooling, if its hidden states are wanted all the same"
            raise UnsupportedModelError(msg, where=runner.definition.file.path, do=do)
        usual = "mean" if runner.encodes else "last"
        asked = STATED.get(stated, f"type {stated}") if stated else usual
    if asked not in POOL:
        msg = "there is no such pooling"
        raise OptionError(msg, where="pooling", expected=", ".join(POOL), got=asked)
    return asked


def embed(
    engine: Engine, texts: Sequence[list[int]], how: str, adapters: Mix = ()
) -> np.ndarray:
    """The pooled states of each text: (n, n_embd) float32."""
    n_embd = engine.runner.definition.hparams.n_embd
    vectors = np.empty((len(texts), n_embd), np.float32)
    for i, states in hidden(engine, texts, adapters):
        vectors[i] = POOL[how](states)
    return vectors


def hidden(
    engine: Engine, texts: Sequence[list[int]], adapters: Mix = ()
) -> Iterator[tuple[int, np.ndarray]]:
    """The hidden states (n, n_embd) of each text with its number, long texts first.

    Texts of like length share a step where the model can. Others' steps come between.
    """
    order, runner = sorted(range(len(texts)), key=lambda i: -len(texts[i])), engine.runner
    done = 0
    while done < len(texts):
        group = order[done : done + runner.together([len(texts[i]) for i in order[done:]])]
        states = engine.call(partial(runner.hidden, [texts[i] for i in group], adapters))
        yield from zip(group, states, strict=True)
        done += len(group)


def normalised(vectors: np.ndarray) -> np.ndarray:
    """The same with a length of 1 each; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
