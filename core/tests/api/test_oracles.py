"""Every architecture through the public API, against its reference (data/oracles/README.md)."""

from __future__ import annotations

import numpy as np
import pytest

BOUNDS = {
    "llama": 1e-4,
    "qwen2": 1e-4,
    "qwen3": 1e-4,
    "gpt2": 1e-4,
    "mamba": 2e-4,
    "mamba2": 2e-4,
    "gemma3": 1e-4,
    "phi3": 1e-4,
    "olmo2": 1e-4,
    "granite": 1e-4,
    "lfm2": 1e-4,
}
by_model = pytest.mark.parametrize(("name", "bound"), BOUNDS.items(), ids=BOUNDS)
QUANTISED = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K", "IQ4_XS")


def difference(actual, expected):
    assert (expected.shape, np.float32) == (actual.shape, actual.dtype)
    return float(np.abs(actual - expected).max())


@by_model
def test_one_batch(shared, oracle, name, bound):
    """The logits of a whole text."""
    data = oracle(name)
    assert difference(shared(name).logits(data["ids"]), data["ref"]) <= bound


@by_model
def test_token_by_token(shared, oracle, name, bound):
    """The same, fed one token at a time."""
    data = oracle(name)
    with shared(name).open() as session:
        rows = np.array([session.feed([i]) for i in data["ids"]])
    assert difference(rows, data["ref"]) <= bound


@by_model
def test_two_interleaved_sequences(shared, oracle, name, bound):
    """Two sessions that take turns, by pieces of different lengths."""
    data = oracle(name)
    ids, model = data["ids"], shared(name)
    backwards = model.logits(ids[::-1])
    with model.open() as one, model.open() as two:
        a, b = [one.logits(ids[:2])], [two.logits(ids[::-1][:5])]
        a.append(one.logits(ids[2:9]))
        b.append(two.logits(ids[::-1][5:6]))
        a.append(one.logits(ids[9:]))
        b.append(two.logits(ids[::-1][6:]))
    assert difference(np.concatenate(a), data["ref"]) <= bound
    assert difference(np.concatenate(b), backwards) <= bound


@by_model
def test_two_sequences_in_one_step(shared, oracle, name, bound):
    """Two sequences that are decoded together each get their own logits."""
    data = oracle(name)
    ids, model = data["ids"], shared(name)
    with model.open() as one, model.open() as two:
        one.feed(ids[:9])
        two.feed(ids[:4])
        sequences = [one._sequence, two._sequence]
        rows = [
            model.engine.call(
                lambda i=i: model.runner.decode(sequences, [ids[9 + i], ids[4 + i]])
            )
            for i in range(8)
        ]
    assert difference(np.array([r[0] for r in rows]), data["ref"][9:17]) <= bound
    assert difference(np.array([r[1] for r in rows]), data["ref"][4:12]) <= bound


@pytest.mark.parametrize("ubatch", [1, 8, 512])
@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2"])
def test_prompts_of_any_length_in_pieces_of_any_size(load, oracle, name, ubatch):
    """K07: the logits of each row do not depend on how a prompt was cut."""
    data = oracle(name)
    model = load(name, ubatch=ubatch)
    for n in (1, 7, 8, 9, 16, 17):
        with model.open() as session:
            last = session.feed(data["ids"][:n])
        assert np.abs(last - data["ref"][n - 1]).max() <= (2e-4 if name == "mamba" else 1e-5)
        assert last.argmax() == data["ref"][n - 1].argmax()
        assert np.array_equal(
            model.logits(data["ids"][:n]).argmax(1), data["ref"][:n].argmax(1)
        )


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("mode", ["once", "blocks"])
def test_quantised_weights(rewrite, add_backend, load, oracle, kind, mode):
    """Quantised files give the logits of their dequantised weights, however they are kept."""
    data = oracle("llama-e256")
    path = _with_vocabulary(rewrite, f"llama-e256-{kind}")
    add_backend("kept")
    model = load(path, device="kept", options={"kept": {"dequantise": mode}})
    assert difference(model.logits(data["ids"]), data[kind]) <= 1e-3


def _with_vocabulary(rewrite, name):
    tokens = [f"<0x{i:02X}>" for i in range(64)]
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 64,
        "tokenizer.ggml.token_type": [6] * 64,
    }
    return rewrite(name, keys)


def test_an_encoder_gives_hidden_states(shared, oracle):
    """bert, from ids and from text; each text by itself."""
    data, model = oracle("bert"), shared("bert")
    assert difference(model.hidden(data["ids"]), data["ref"]) <= 1e-4
    ids = model.tokenize("the lord")
    assert np.array_equal(model.hidden("the lord"), model.hidden(ids))
    assert (len(ids), model.runner.definition.hparams.n_embd) == model.hidden(ids).shape
    assert difference(model.hidden(data["ids"]), data["ref"]) <= 1e-4


STORY = """Once upon a time, there was a little girl named Lily. She loved to play outside in \
the park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She \
said, "I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she said, "I'm sorry, mom. I didn't know what to do." Her \
mom said, "Don't worry, Lily. We can help you."""


@pytest.mark.parametrize("ubatch", [1, 512])
def test_stories260k_writes_what_its_author_shows(load, ubatch):
    """The greedy text of 256 steps, from nothing, of llama2.c's doc/stories260K.md."""
    model = load("stories260K", ctx=512, ubatch=ubatch)
    generation = model.generate("", max_tokens=256, temperature=0)
    assert STORY == generation.read()
    assert 256 == len(generation.tokens)
