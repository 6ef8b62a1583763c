"""Every architecture against an independent implementation (see data/oracles/README.md)."""

from __future__ import annotations

import numpy as np
import pytest

DECODERS = {
    "llama": 1e-4,
    "qwen2": 1e-4,
    "qwen3": 1e-4,
    "qwen3moe": 1e-4,
    "gpt2": 1e-4,
    "gemma3": 1e-4,
    "phi3": 1e-4,
    "olmo2": 1e-4,
    "granite": 1e-4,
    "lfm2": 1e-4,
    "mamba": 2e-4,
    "mamba2": 2e-4,
}
VARIANTS = (
    "qwen3-wide",
    "qwen2-yarn",
    "qwen2-yarn-factor",
    "llama-linear",
    "llama-llama3",
    "phi3-partial",
    "phi3-window",
    "gemma3-window",
    "olmo3",
    "falcon-mamba",
)
CASES = [*DECODERS.items(), *((name, 1e-4) for name in VARIANTS)]
by_model = pytest.mark.parametrize(("name", "bound"), CASES, ids=[name for name, _ in CASES])


def difference(actual, expected) -> float:
    assert expected.shape == actual.shape
    assert np.isfinite(actual).all()
    return float(np.abs(actual - expected).max())


@by_model
def test_prefill_in_one_batch(load, oracle, name, bound):
    """A whole text in one step gives the logits of the reference."""
    data = oracle(name)
    assert difference(load(name).whole(data["ids"]), data["ref"]) <= bound


@by_model
def test_token_by_token(load, oracle, name, bound):
    """The same logits come out when each token is a step of its own."""
    data = oracle(name)
    assert difference(load(name).one_by_one(data["ids"]), data["ref"]) <= bound


@by_model
def test_two_interleaved_sequences(load, oracle, name, bound):
    """Two texts that share steps, together and alone, get the logits that each gets alone."""
    data = oracle(name)
    ids, others = data["ids"], data["ids"][::-1]
    expected = load(name).whole(others)
    one, two = load(name).interleaved(ids, others)
    assert difference(one, data["ref"]) <= bound
    assert difference(two, expected[: len(two)]) <= bound
    assert len(ids) - 1 == len(two)


def test_bert_gives_hidden_states(load, oracle):
    """Every token of an encoder sees the whole text; two texts of a step do not see each
    other."""
    data = oracle("bert")
    model = load("bert")
    assert difference(model.whole(data["ids"]), data["ref"]) <= 1e-4
    others = data["ids"][::-1].copy()
    expected = load("bert").whole(others)
    pair = model.step([(model.open(), data["ids"]), (model.open(), others)])
    assert difference(pair[0], data["ref"]) <= 1e-4
    assert difference(pair[1], expected) <= 1e-4


@pytest.mark.parametrize(
    ("n_ctx", "key"), [(0, "ref_long"), (128, "ref_long"), (32, "ref_short")]
)
def test_longrope_factors_follow_the_context_asked_for(load, oracle, n_ctx, key):
    """The long factors serve a context beyond the original one, from its first token on."""
    data = oracle("phi3-longrope")
    expected = data[key]
    ids = data["ids"][: len(expected)]
    assert difference(load("phi3-longrope", n_ctx).whole(ids), expected) <= 1e-4
    assert difference(load("phi3-longrope", n_ctx).one_by_one(ids, first=20), expected) <= 1e-4


QUANTISED = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K", "IQ4_XS")


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights(load, oracle, kind):
    """Quantised files give the logits of their dequantised weights."""
    data = oracle("llama-e256")
    model = load(f"llama-e256-{kind}")
    assert kind.lower() in {t.dtype.name for t in model.definition.file.tensors.values()}
    assert difference(model.whole(data["ids"]), data[kind]) <= 1e-3
