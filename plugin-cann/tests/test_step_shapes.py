"""Steps of many lengths on simulated chips: of drafts, and of texts that are embedded."""

from __future__ import annotations

import json

import pytest
from test_simulated import CHIPS, HERE, ORACLES, Run

BEGIN = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np, umbel
from umbel import plugins
import stepping

MADE = ("descriptors", "executors", "phase 1", "mallocs")

def figures():
    told, programs = stepping.counters(), stepping.programs().made.values()
    return dict(
        made=sum(told[key] for key in MADE), programs=len(programs),
        kept=sum(len(program.launches) for program in programs),
        launches=told["launches"], replays=told.get("replays", 0),
    )
"""
DRAFTS = f"""{BEGIN}
PROMPTS = ([1, 5, 9, 7] * 7, [1, 6, 30, 2] * 7)

def written(rounds, **how):
    texts, found = [], []
    with umbel.load(sys.argv[1], device="cann:0", ctx=256, **how) as model:
        for i in range(rounds):
            made = model.generate(PROMPTS[i % 2], max_tokens=120, temperature=0)
            texts.append(made.read())
            steps = {{k.tokens for k in model.runner._plans if k.rows == k.tokens}}
            found.append(figures() | dict(
                drafted=made.drafted, accepted=made.accepted, steps=sorted(steps)))
    return texts, found

plain, _ = written(2)
texts, found = written(4, draft="lookup")
assert texts == plain * 2
print(json.dumps(found))
"""


@pytest.mark.parametrize("chip", CHIPS)
def test_drafts(run: Run, chip: str) -> None:
    """The text without them; a program for each length of a step, which is made once."""
    done = run(chip, "-c", DRAFTS, ORACLES / "gemma3.gguf")
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert rounds[-1]["accepted"] > 50
    assert {4, 8, 16} <= {*rounds[-1]["steps"]} <= {1, 2, 4, 8, 16}
    # the usual ones, the prompt, and one for each length
    assert rounds[-1]["programs"] <= 3 + len(rounds[-1]["steps"])
    assert rounds[3]["made"] == rounds[1]["made"], "the later half makes nothing anew"
    if chip == "910B":
        # what was used once is recorded at its second use
        assert rounds[3]["launches"] - rounds[1]["launches"] < rounds[3]["kept"]
        assert rounds[3]["replays"] > rounds[1]["replays"] + 5


EMBEDDINGS = f"""{BEGIN}
rng = np.random.default_rng(0)
with umbel.load(sys.argv[1], device="cann:0", ctx=64) as model:
    n_vocab, runner, steps, found = model.tokenizer.n_vocab, model.runner, 0, []
    with umbel.load(sys.argv[1], device="host", ctx=64) as host:
        step = runner.step
        def counted(*given, **more):
            global steps
            steps += 1
            return step(*given, **more)
        runner.step = counted
        for i in range(6):
            lengths = np.random.default_rng(i % 3).integers(1, 64, 30)
            texts = [rng.integers(5, n_vocab, n).tolist() for n in lengths]
            got, expected = model.embed(texts), host.embed(texts)
            found.append(figures() | dict(
                off=float(np.abs(got - expected).max()), steps=steps,
                plans=len(runner._plans), states=len(runner.states.tensors)))
print(json.dumps(found))
"""


@pytest.mark.parametrize("chip", CHIPS)
def test_embeddings(run: Run, chip: str) -> None:
    """Of texts of all lengths: the host's, several in a step, from few programs and without
    any state."""
    done = run(chip, "-c", EMBEDDINGS, ORACLES / "bert.gguf")
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert max(told["off"] for told in rounds) < (1e-5 if chip == "910B" else 1e-3)
    assert {told["states"] for told in rounds} == {0}
    assert rounds[-1]["steps"] < 0.75 * 6 * 30
    # of 16, 32, 48 and 64 tokens; and of 16, where 4 fit into a step, the last 1 to 3 of them
    assert rounds[-1]["programs"] <= 4 + 3
    assert rounds[5]["made"] == rounds[2]["made"], "the later half makes nothing anew"
    if chip == "910B":
        assert rounds[5]["launches"] - rounds[2]["launches"] < rounds[5]["kept"]
        assert rounds[5]["replays"] > rounds[2]["replays"] + 20
