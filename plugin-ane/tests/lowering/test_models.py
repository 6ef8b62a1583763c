"""Whole models, from real plans: what the lowered graphs compute against known logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ane_fake import Hooks, runner
from ane_ports import EXACT, PROFILE, STRANGE
from umbel.state import Sequence
from umbel_ane.compiler.lowering import Options
from umbel_ane.profile import Profile, load, names

CLOSE = 2e-2
WHOLE = Options(head="ane", attention="ane")
MODELS = ("gpt2", "llama", "qwen2", "qwen3", "gemma3", "phi3", "olmo2", "granite")
ODD = ("phi3-partial", "qwen3-wide", "gemma3-window", "phi3-window", "llama-llama3")


def known(oracles: Path, name: str) -> dict[str, Any]:
    with np.load(oracles / f"{name}.npz") as arrays:
        return dict(arrays)


def apart(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", [*MODELS, *ODD])
def test_logits(oracles: Path, name: str) -> None:
    """In one step, then token by token over the cache; nothing is left to the host."""
    data, hooks = known(oracles, name), Hooks(PROFILE, WHOLE)
    made = runner(oracles / f"{name}.gguf", hooks)
    ids = [int(i) for i in data["ids"]]
    assert apart(made.forward(Sequence(), ids, every=True), data["ref"]) <= CLOSE
    sequence = Sequence()
    rows = [made.forward(sequence, [i])[0] for i in ids[:8]]
    assert apart(np.array(rows), data["ref"][:8]) <= CLOSE
    for step in made.usual:
        assert made.elsewhere(made.plan(step)) == []
    made.close()


@pytest.mark.parametrize("profile", [EXACT, STRANGE, *map(load, names())], ids=lambda p: p.name)
def test_profiles(oracles: Path, profile: Profile) -> None:
    data, hooks = known(oracles, "llama"), Hooks(profile, WHOLE)
    made = runner(oracles / "llama.gguf", hooks)
    ids = [int(i) for i in data["ids"]]
    assert apart(made.forward(Sequence(), ids, every=True), data["ref"]) <= CLOSE
    made.close()


def test_float32_is_exact(oracles: Path) -> None:
    """Without float16's rounding only that of weights and of the split's edges is left."""
    data, hooks = known(oracles, "llama"), Hooks(PROFILE, WHOLE, mode="fp32")
    made = runner(oracles / "llama.gguf", hooks)
    ids = [int(i) for i in data["ids"]]
    assert apart(made.forward(Sequence(), ids, every=True), data["ref"]) <= 2e-3
    made.close()


def test_hidden_states_of_bert(oracles: Path) -> None:
    data, hooks = known(oracles, "bert"), Hooks(PROFILE, WHOLE)
    made = runner(oracles / "bert.gguf", hooks)
    (rows,) = made.hidden([[int(i) for i in data["ids"]]])
    assert apart(rows, data["ref"]) <= CLOSE
    made.close()


def test_sequences_in_a_batch(oracles: Path) -> None:
    """Several sequences of different lengths decode as each would alone."""
    hooks = Hooks(PROFILE, WHOLE)
    made = runner(oracles / "qwen2.gguf", hooks, parallel=3)
    alone, batch = [Sequence() for _ in range(3)], [Sequence() for _ in range(3)]
    for i, (one, other) in enumerate(zip(alone, batch, strict=True)):
        prompt = [5 + i] * (3 + 4 * i)
        made.forward(one, prompt)
        made.forward(other, prompt)
    singly = np.concatenate([made.decode([s], [7]) for s in alone])
    assert apart(made.decode(batch, [7, 7, 7]), singly) <= CLOSE
    made.close()
