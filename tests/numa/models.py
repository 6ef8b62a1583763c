"""Small models, and what they answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from umbel import gguf, loading, plugins
from umbel.runner import Runner, Settings
from umbel.state import Sequence

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"
STORIES, DENSE, EXPERTS = "stories260K", "llama-e256-Q8_0", "qwen3moe"
LONG = "qwen2-yarn-factor"  # of so many tokens that attention to them is dealt out in pieces
MORE = (9, 10, 11)


@contextlib.contextmanager
def loaded(name: str, mode: str, threads: int | None = None) -> Iterator[Runner]:
    """A model on a device that is opened for it; most have no vocabulary."""
    file = gguf.open(ORACLES / f"{name}.gguf")
    try:
        definition = loading.define(file)
        options = {"numa": {"mode": mode}}
        targets = loading.targets("numa", options, threads, strict=True)
        settings = Settings(ctx=loading.context(definition, None, targets), strict=True)
        runner = Runner(definition, targets, settings)
        try:
            yield runner
        finally:
            runner.close()
    finally:
        plugins.get().close()
        file.close()


def prompt(name: str) -> list[int]:
    return [n % 50 + 1 for n in range(140 if name == LONG else 8)]


def logits(
    name: str,
    mode: str,
    threads: int | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> bytes:
    """Of a prompt, and of tokens one by one after it. `meanwhile` is done in between."""
    with loaded(name, mode, threads) as runner:
        text = Sequence()
        rows = [runner.forward(text, prompt(name), every=True)]
        meanwhile()
        rows += [runner.decode([text], [token]) for token in MORE]
    return np.concatenate(rows).tobytes()


@cache
def expected(name: str) -> bytes:
    """On one thread, which is pinned to nothing."""
    return logits(name, "off", threads=1)
