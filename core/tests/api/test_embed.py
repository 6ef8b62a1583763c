"""Embeddings and hidden states, of encoders and of decoders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from umbel.errors import (
    CancelledError,
    ContextFullError,
    OptionError,
    TokenizerError,
    UnsupportedModelError,
)
from umbel.graph import Role
from umbel.plan import Plan

BY_HAND = {"mean": lambda h: h.mean(axis=0), "cls": lambda h: h[0], "last": lambda h: h[-1]}
DECODERS = ("llama", "qwen3", "gpt2", "mamba", "mamba2", "gemma3", "olmo2", "granite", "lfm2")
TEXTS = ["", "the lord", "what say you", "the king and the lord of the house", "I"]


@pytest.fixture
def steps(monkeypatch):
    """The number of texts in each step that a model runs from now on."""

    def counted(model):
        counts = []
        step = model.runner.step
        monkeypatch.setattr(
            model.runner, "step", lambda b, *a, **k: counts.append(len(b)) or step(b, *a, **k)
        )
        return counts

    return counted


# pooling


@pytest.mark.parametrize("how", BY_HAND)
def test_pooling(shared, oracle, how):
    """Of the reference's hidden states, pooled by hand."""
    data = oracle("bert")
    (vector,) = shared("bert").embed([data["ids"]], pooling=how, normalize=False)
    assert (np.float32, (64,)) == (vector.dtype, vector.shape)
    assert np.abs(vector - BY_HAND[how](data["ref"])).max() <= 1e-4


@pytest.mark.parametrize(
    ("stated", "how"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_pooling_of_the_file(load, rewrite, stated, how):
    """The key of the file decides; where it is open, an encoder takes the mean."""
    model = load(rewrite("bert", {"bert.pooling_type": stated}))
    assert np.array_equal(model.embed(TEXTS), model.embed(TEXTS, pooling=how))


def test_a_decoder_pools_its_last_token(shared):
    """It is the only one that has seen all of the text."""
    model = shared("llama")
    assert np.array_equal(model.embed(TEXTS[1:]), model.embed(TEXTS[1:], pooling="last"))


def test_a_model_that_ranks(load, rewrite):
    """Refused with the reason, unless a pooling is named."""
    model = load(rewrite("bert", {"bert.pooling_type": 4}))
    with pytest.raises(UnsupportedModelError, match="ranks texts"):
        model.embed(["a"])
    assert (1, 64) == model.embed(["a"], pooling="cls").shape


@pytest.mark.parametrize("asked", ["rank", "none", "", "MEAN", 1])
def test_there_is_no_such_pooling(shared, asked):
    """What there is is told."""
    with pytest.raises(OptionError) as caught:
        shared("bert").embed(["a"], pooling=asked)
    assert ("pooling", "mean, cls, last") == (caught.value.where, caught.value.expected)


def test_a_pooling_that_nobody_knows(load, rewrite):
    """A number in the file without a meaning."""
    with pytest.raises(OptionError, match="type 9"):
        load(rewrite("bert", {"bert.pooling_type": 9})).embed(["a"])


# vectors


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_length_one(shared, name):
    """Each vector is normalised, unless that is not wanted; equal texts are equal."""
    model, texts = shared(name), [*TEXTS[1:], TEXTS[1]]
    vectors, plain = model.embed(texts), model.embed(texts, normalize=False)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= 1e-6
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 0.01
    assert np.abs(vectors - plain / lengths).max() <= 1e-6
    assert abs(vectors[0] @ vectors[-1] - 1) <= 1e-6
    assert vectors[0] @ vectors[1] < 0.999


def test_zeros_stay_zeros(load, rewrite):
    """A vector without a direction does not become NaN."""
    zeros = dict.fromkeys(("weight", "bias"), np.zeros(64, np.float32))
    last = {f"blk.1.layer_output_norm.{kind}": array for kind, array in zeros.items()}
    assert not load(rewrite("bert", tensors=last)).embed(["a"]).any()


@pytest.mark.parametrize("name", ["bert", "llama", "mamba"])
def test_together_as_one_by_one(shared, name):
    """V09: lengths of 1, 7, 40 and more in one call, in any order, each as if alone."""
    model, rng = shared(name), np.random.default_rng(0)
    texts = [rng.integers(5, 256, n).tolist() for n in (7, 1, 40, 7, 128, 3, 16, 17)]
    together = model.embed(texts, pooling="mean", normalize=False)
    alone = [model.embed([ids], pooling="mean", normalize=False)[0] for ids in texts]
    by_hand = [model.hidden(ids).mean(axis=0) for ids in texts]
    assert np.abs(together - alone).max() <= 1e-5
    assert np.abs(together - by_hand).max() <= 1e-5


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_short_texts_share_a_step(shared, steps, name):
    """As many as one prompt's piece has tokens, padded to one length; 17 and 16 are not."""
    model, counts = shared(name), steps(shared(name))
    model.embed([[7] * n for n in (3, 5, 9, 16, 2, 4, 4, 4, 4, 1, 100)])
    assert [1, 8, 2] == counts
    counts.clear()
    model.embed([[7] * 17, [7] * 16])
    assert [1, 1] == counts


def test_recurrent_state_sees_no_padding(shared, steps):
    """Then each text has a step to itself, of its own length."""
    model, counts = shared("mamba"), steps(shared("mamba"))
    model.embed([[7] * 3, [7] * 3])
    assert [1, 1] == counts


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_texts_of_many_lengths_have_few_plans(load, monkeypatch, name):
    """Those of decoders without any state; of a long one the last piece is padded, too."""
    model = load(name, ubatch=64)
    before = set(model.runner._plans)
    for n in range(1, 31):
        model.embed([[7] * n])
    made = set(model.runner._plans) - before
    assert {(16, 1), (32, 1)} == {(step.tokens, step.sequences) for step in made}
    assert len(made) == 2
    model.embed([[7] * n for n in range(1, 31)])
    assert len(set(model.runner._plans) - before) <= 7
    for plan in (model.runner.plan(step) for step in made):
        states = [t for s in plan.steps for t in s.graph.slots if t.role is Role.STATE]
        assert not states
    if name == "qwen3":
        graphs, make = [], model.runner.make
        monkeypatch.setattr(
            model.runner, "make", lambda g, **how: graphs.append(g) or make(g, **how)
        )
        model.embed([[7] * 66])
        assert len(graphs) == 2
        model.embed([[7] * 70, [7] * 79])
        assert len(graphs) == 2


def test_beside_a_session(load, steps):
    """However many cells sessions have: whole texts take none."""
    model = load("llama")
    texts = [[5 + n] * 12 for n in range(4)]
    expected = model.embed(texts)
    with model.open() as session:
        session.logits([7] * model.ctx)
        free = model.runner.cache.cells.free
        counts = steps(model)
        assert np.abs(model.embed(texts) - expected).max() <= 1e-5
        assert model.runner.cache.cells.free == free == 0
    assert [4] == counts


def test_a_device_of_few_sizes(add_backend, load, shared):
    """Buckets of tokens: one text a step, padded, with the same result."""
    add_backend("sized", token_buckets=(8, 32, 128))
    for name in ("bert", "llama"):
        model = load(name, device="sized")
        assert np.abs(model.embed(TEXTS[1:]) - shared(name).embed(TEXTS[1:])).max() <= 1e-5


def test_what_is_a_text(shared):
    """One by itself, bytes, ids; no texts at all."""
    model = shared("bert")
    expected = model.embed(["the lord"])
    for same in ("the lord", b"the lord", [b"the lord"], [model.tokenize("the lord")]):
        assert np.array_equal(expected, model.embed(same))
    assert (0, 64) == model.embed([]).shape


# hidden states of decoders


@pytest.mark.parametrize("name", DECODERS)
def test_the_output_head_makes_logits_of_them(shared, oracle, name):
    """Every decoder gives what its output head reads."""
    data, model = oracle(name), shared(name)
    file = model.file
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    logits = model.hidden(data["ids"]) @ file.array(head).T
    divisor = file.metadata.get("granite.logit_scale", 1.0)
    assert np.abs(logits / divisor - data["ref"]).max() <= 3e-4


def test_they_do_not_depend_on_pieces(load, shared, oracle):
    """A prompt in small steps gives the same states."""
    ids = oracle("llama")["ids"]
    pieces = load("llama", ubatch=5).hidden(ids)
    assert np.abs(pieces - shared("llama").hidden(ids)).max() <= 1e-5


def test_nothing_is_left_behind(load, monkeypatch):
    """The cells of a text are given back, also when it fails in the middle."""
    model = load("llama", ubatch=4)
    cells = model.runner.cache.cells
    free = cells.free
    model.embed([[5] * 100, [6] * 100])
    assert free == cells.free
    monkeypatch.setattr(Plan, "run", _cancelled(Plan.run, after=2))
    with pytest.raises(CancelledError):
        model.embed([[5] * 100])
    assert free == cells.free


def _cancelled(run, after):
    """`run`, which is cancelled after so many steps."""
    done = []

    def counted(*args):
        done.append(1)
        if len(done) > after:
            msg = "enough"
            raise CancelledError(msg)
        return run(*args)

    return counted


def test_an_architecture_without_an_output_head(scripted):
    """A plugin's, which does not say what its head would read."""
    model, _ = scripted(b"abc")
    with pytest.raises(UnsupportedModelError, match="'scripted' gives no hidden states"):
        model.embed(["a"])


# many at once, and what is refused


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_from_several_threads(load, name):
    """Each gets its own vectors; an answer that is being written is not changed."""
    model = load(name, parallel=4)
    expected = [model.embed([text]) for text in TEXTS[1:]]
    alone = name == "llama" and model.generate("the", max_tokens=20, temperature=0).read()
    with ThreadPoolExecutor(4) as pool:
        answer = alone and model.generate("the", max_tokens=20, temperature=0)
        found = list(pool.map(lambda text: model.embed([text]), TEXTS[1:] * 3))
        assert alone == (answer and answer.read())
    assert all(np.array_equal(a, b) for a, b in zip(expected * 3, found, strict=True))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_text_that_is_too_long(shared, steps, name):
    """V09: refused with its number before anything is computed; never cut."""
    model, counts = shared(name), steps(shared(name))
    model.embed([[5] * 128])
    counts.clear()
    with pytest.raises(ContextFullError) as caught:
        model.embed(["I", [5] * 129, "you"])
    assert ("text 2", "129 tokens") == (caught.value.where, caught.value.got)
    assert [] == counts


@pytest.mark.parametrize(
    ("text", "error"), [([], OptionError), (5, OptionError), ([-1], TokenizerError)]
)
def test_what_is_no_text(shared, text, error):
    """V10: no tokens, no list, no tokens of the model."""
    with pytest.raises(error):
        shared("bert").embed(["I", text])
    for alone in (5, 1.5, None):
        with pytest.raises(OptionError, match="nothing to encode"):
            shared("bert").embed(alone)
