"""The demo model, SmolLM2-135M, on each simulated chip beside the host (minutes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import umbel

TOKENS = 64
PROMPT = "Once upon a time there was a little boat that wanted to see the ocean."
# By which part of the largest logit two tokens may be apart where a device prefers the other:
# float16 keeps 11 bits of each of the values that are summed.
ROUNDING = 2e-3

GREEDY = """
import json, sys, umbel
with umbel.load("demo", device="cann:0", ctx=128) as model:
    made = model.generate(sys.argv[1], max_tokens=int(sys.argv[2]), temperature=0)
    made.read()
    plan = model.runner.plan(model.runner.usual[0])
    elsewhere = [p.origin for p in model.runner.elsewhere(plan)]
print(json.dumps({"tokens": made.tokens, "elsewhere": elsewhere, "splits": len(plan.steps)}))
"""


@pytest.fixture(scope="module")
def host() -> umbel.Model:
    return umbel.load("demo", device="host", ctx=128)


@pytest.fixture(scope="module")
def expected(host: umbel.Model) -> list[int]:
    made = host.generate(PROMPT, max_tokens=TOKENS, temperature=0)
    made.read()
    return made.tokens


@pytest.mark.demo
@pytest.mark.parametrize("chip", ["310B", "310P", "910B"])
def test_the_text_of_the_host(
    chip: str, host: umbel.Model, expected: list[int], tmp_path: Path
) -> None:
    """64 tokens; or the first other one is as good, but for what float16 rounds."""
    env = {**os.environ, "UMBEL_CANN_SIMULATOR": chip, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", GREEDY, PROMPT, str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["elsewhere"] == []
    pairs = enumerate(zip(told["tokens"], expected, strict=True))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is None:
        print(f"{chip}: the host's {TOKENS} tokens")
        return
    with host.open_session() as session:
        logits = session.feed([*host.tokenizer.encode(PROMPT, eos=False), *expected[:first]])
    gap = logits[expected[first]] - logits[told["tokens"][first]]
    size = np.abs(logits).max()
    print(f"{chip}: other than the host's from token {first} on, {gap / size:.1e} apart")
    assert 0 <= gap / size < ROUNDING
