"""Where the limits of whole models come from: what rounding costs the models of the suite."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import umbel
from attrs import evolve
from umbel.models import architecture
from umbel.ops import OPS
from umbel_kit.compare import nmse
from umbel_kit.conformance.test_models import DECODERS, IDS, OTHERS, ROUNDED
from umbel_kit.models import write_model
from umbel_kit.simulated import as_weights, eight_bits, logits


@pytest.fixture
def runner(tmp_path):
    opened = []

    def load(arch, dtype):
        path = write_model(tmp_path / "a.gguf", architecture(arch), OPS, dtype=dtype)
        opened.append(umbel.load(path, "host", ctx=64, kv="f16"))
        return opened[-1].runner

    yield load
    for model in opened:
        model.close()


def _rounded(how, x, dtype):
    return eight_bits(x, **how) if dtype.quantised else x


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("arch", DECODERS)
def test_limits(runner, arch, dtype):
    """Twice the cost; other blocks and scales stay below."""
    own = runner(arch, dtype)
    exact = logits(own, IDS, lambda x, _: x)
    cost = nmse(exact, logits(own, IDS, as_weights))
    assert 0 < 2 * cost < 1.05 * ROUNDED[dtype]
    if dtype == "f16":
        return
    for how in ({"block": 64}, {"scale": 1.05}, {"scale": 1.1}):
        rounds = partial(_rounded, how)
        costs = nmse(exact, logits(own, IDS, rounds))
        assert cost / 4 < costs < ROUNDED[dtype]


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "q4_0"])
def test_routers_are_decided(runner, dtype):
    """No rounding chooses another expert for the texts of the suite."""
    own = runner("qwen3moe", dtype)
    top_k, margins = OPS["top_k"], []

    def noting(x, k):
        best = np.sort(np.log(x), axis=-1)[:, ::-1]
        margins.append(best[:, k - 1] - best[:, k])
        return top_k.reference(x, k=k)

    ops = {**OPS, "top_k": evolve(top_k, reference=noting)}
    own.definition = evolve(own.definition, ops=ops)
    for text in (IDS, OTHERS):
        logits(own, text, as_weights)
    assert len(margins) == 4
    assert min(m.min() for m in margins) > 1 / 3


def test_eight_bits():
    x = np.array([[127, 1.4, -0.6, 0], [0, 0, 0, 0]], np.float32)
    assert eight_bits(x, 4).tolist() == [[127, 1, -1, 0], [0, 0, 0, 0]]
    assert eight_bits(x[:, :3], 2).tolist() == [[127, 1, pytest.approx(-0.6)], [0, 0, 0]]
