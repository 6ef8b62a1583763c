"""Perplexity, against the definition in plain NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import umbel
from umbel.errors import DeviceError, OptionError
from umbel.extras.locate import find_demo
from umbel.session import Session
from umbel.tools import perplexity
from umbel.tools.perplexity import estimates

ORACLES = Path(__file__).parents[1] / "data" / "oracles"


@pytest.fixture(scope="module")
def model():
    """llama, which has a BOS and puts it before each text."""
    with umbel.load(ORACLES / "llama.gguf", device="host", ctx=64) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ids(model):
    n_vocab = model.tokenizer.n_vocab
    return [model.tokenizer.bos_id, *np.random.default_rng(0).integers(5, n_vocab, 70).tolist()]


def losses(model, chunk):
    """-log p of all tokens of a chunk but the first."""
    logits = model.logits(chunk).astype(np.float64)[:-1]
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_p[np.arange(len(chunk) - 1), chunk[1:]]


@pytest.mark.parametrize("ctx", [16, 17, 64])
@pytest.mark.parametrize("every", [False, True])
def test_the_definition(model, ids, ctx, every):
    """Chunks of ctx tokens that begin with BOS; the tokens after the first half count."""
    chunks = [[ids[0], *ids[i + 1 : i + ctx]] for i in range(0, len(ids) - ctx + 1, ctx)]
    counted = [losses(model, chunk)[0 if every else ctx // 2 :] for chunk in chunks]

    found = list(estimates(model, ids, ctx=ctx, every=every))

    assert [(i + 1, len(chunks)) for i in range(len(chunks))] == [
        (e.chunks, e.of) for e in found
    ]
    for i, estimate in enumerate(found):
        so_far = np.concatenate(counted[: i + 1])
        expected = np.exp(so_far.mean())
        error = expected * so_far.std() / np.sqrt(len(so_far) - 1)
        assert len(so_far) == estimate.tokens
        assert abs(estimate.perplexity / expected - 1) <= 1e-5
        assert abs(estimate.error / error - 1) <= 1e-4


def test_a_model_without_bos(ids):
    """The chunks are as they stand in the text."""
    with umbel.load(ORACLES / "gpt2.gguf", device="host", ctx=32) as model:
        assert [] == model.tokenizer.first
        counted = [losses(model, ids[i : i + 32])[16:] for i in (0, 32)]
        last = list(estimates(model, ids, ctx=32))[-1]
    assert abs(last.perplexity / np.exp(np.concatenate(counted).mean()) - 1) <= 1e-5


def test_logits_in_pieces(model, ids, monkeypatch):
    """However few logits are held at once, the figure is the same."""
    (whole,) = estimates(model, ids, ctx=64)
    shapes = []
    logits = Session.logits
    monkeypatch.setattr(Session, "logits", lambda s, i: shapes.append(len(i)) or logits(s, i))
    monkeypatch.setattr(perplexity, "VALUES", 10 * model.tokenizer.n_vocab + 3)

    (pieces,) = estimates(model, ids, ctx=64)

    assert [10, 10, 10, 1] == shapes
    assert abs(pieces.perplexity / whole.perplexity - 1) <= 1e-6


def test_the_first_chunks(model, ids):
    """`chunks` stops earlier; more than there are is all of them."""
    whole = list(estimates(model, ids, ctx=16))
    assert whole[:2] == [
        umbel.tools.perplexity.Estimate(e.perplexity, e.error, e.tokens, e.chunks, 4)
        for e in estimates(model, ids, ctx=16, chunks=2)
    ]
    assert 4 == len(list(estimates(model, ids, ctx=16, chunks=99)))


def test_a_text_that_is_too_short(model, ids):
    """The error tells how many tokens are needed."""
    with pytest.raises(OptionError) as caught:
        next(estimates(model, ids[:15], ctx=16))
    assert ("at least 16 tokens", "15 tokens") == (caught.value.expected, caught.value.got)


@pytest.mark.parametrize(
    ("name", "value"), [("ctx", 7), ("ctx", 65), ("ctx", True), ("chunks", 0), ("chunks", -1)]
)
def test_numbers_that_cannot_be(model, ids, name, value):
    """Refused by their name."""
    with pytest.raises(OptionError) as caught:
        next(estimates(model, ids, **{"ctx": 16, name: value}))
    assert name == caught.value.where


def test_a_context_shorter_than_a_chunk_may_be(ids):
    """What is expected is a range that there is."""
    short = umbel.load(ORACLES / "gpt2.gguf", device="host", ctx=7)
    with short as model, pytest.raises(OptionError) as caught:
        next(estimates(model, ids, ctx=7))
    assert ("ctx", 7) == (caught.value.where, caught.value.got)
    assert caught.value.expected.startswith("a whole number from 8 to 2147483647")


def test_logits_that_are_not_finite(model, ids, monkeypatch):
    """No figure is made of them."""
    logits = Session.logits
    monkeypatch.setattr(Session, "logits", lambda s, i: logits(s, i) * np.float32(np.nan))
    with pytest.raises(DeviceError, match="not finite") as caught:
        next(estimates(model, ids, ctx=16))
    assert "chunk 1" == caught.value.where


@pytest.mark.demo
def test_the_demo_model(oracle):
    """All tokens of an English text, against another implementation: 15.306, within 0.01."""
    data = oracle("smollm2-q4_1")
    with umbel.load(find_demo(), device="host", ctx=512) as model:
        (found,) = estimates(model, data["ids"].tolist(), ctx=512, every=True)
    assert 511 == found.tokens
    assert abs(found.perplexity - 15.306) <= 0.01
    assert abs(found.perplexity - np.exp(data["nll"].mean())) <= 1e-3
