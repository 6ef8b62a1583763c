"""Steps on real models, also on those of the oracle folder that have no vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.plan import Plan
from umbel.state import Sequence

MODELS = [
    "gemma3-window",
    "phi3-window",
    "olmo3",
    "qwen3moe",
    "qwen3-wide",
    "qwen2-yarn",
    "llama-llama3",
    "phi3-partial",
    "falcon-mamba",
]
by_model = pytest.mark.parametrize("name", MODELS)


@by_model
@pytest.mark.parametrize("ubatch", [5, 512])
def test_a_whole_text(open_runner, oracle, name, ubatch):
    """Windows, experts and scalings through the plans, in pieces or at once."""
    data = oracle(name)
    runner = open_runner(name, ubatch=ubatch)
    logits = runner.forward(Sequence(), data["ids"].tolist(), every=True)
    assert np.abs(logits - data["ref"]).max() <= 1e-4


@by_model
def test_token_by_token_beside_another(open_runner, oracle, name):
    """Two sequences of different lengths in every step."""
    data = oracle(name)
    ids, runner = data["ids"].tolist(), open_runner(name)
    one, two = Sequence(), Sequence()
    runner.forward(one, ids[:2])
    runner.forward(two, ids[:7])
    steps = [runner.decode([one, two], [ids[2 + i], ids[7 + i]]) for i in range(len(ids) - 7)]
    assert np.abs([a for a, _ in steps] - data["ref"][2 : len(ids) - 5]).max() <= 1e-4
    assert np.abs([b for _, b in steps] - data["ref"][7:]).max() <= 1e-4


def test_a_failing_step_gives_all_places_back(open_runner, monkeypatch):
    """Cells and recurrent states, of every sequence in the step."""
    runner = open_runner("lfm2")
    sequences = [Sequence(), Sequence()]
    for sequence in sequences:
        runner.forward(sequence, [1, 2, 3])
    before = (runner.cache.cells.free, runner.cache.slots.free)

    def fail(*args):
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "run", fail)
        with pytest.raises(OSError, match="no more"):
            runner.decode(sequences, [4, 4])
        with pytest.raises(OSError, match="no more"):
            runner.forward(sequences[0], [4, 4])
    assert before == (runner.cache.cells.free, runner.cache.slots.free)
    rows = runner.decode(sequences, [4, 4])
    expected = runner.forward(Sequence(), [1, 2, 3, 4])
    assert np.abs(rows - expected).max() <= 1e-4


def test_plans_are_kept_and_forgotten(open_runner, monkeypatch):
    """The same shape is planned once; old shapes go, and their devices hear of it."""
    monkeypatch.setattr("umbel.runner.PLANS", 3)
    runner = open_runner("llama")
    plans = []
    for n in (2, 3, 4, 2, 5):
        sequence = Sequence()
        runner.forward(sequence, [5] * n)
        runner.cache.close(sequence)
        plans.append(list(runner._plans.values())[-1])
    assert plans[0] is plans[3]
    assert 3 == len(runner._plans)
    runner.close()
    assert not runner._plans
