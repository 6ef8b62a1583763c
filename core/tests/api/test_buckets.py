"""Devices that take steps of a few sizes only."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import DeviceError

SIZES = [(1, 4, 16), (3, 8)]


@pytest.mark.parametrize("buckets", SIZES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "lfm2"])
def test_padding_changes_no_logits(add_backend, load, oracle, name, buckets):
    """In a batch and token by token; a recurrent state never sees padding."""
    add_backend("sized", token_buckets=buckets, length_buckets=(100, 200))
    data, model = oracle(name), load(name, device="sized")
    bound = 2e-4 if "mamba" in name else 1e-4
    assert np.abs(model.logits(data["ids"]) - data["ref"]).max() <= bound
    with model.open() as session:
        rows = [session.feed(data["ids"][:7]), *(session.feed([i]) for i in data["ids"][7:12])]
    assert np.abs(rows - data["ref"][6:12]).max() <= bound
    tokens = {key.tokens * key.sequences for key in model.runner._plans}
    lengths = {key.kv_length for key in model.runner._plans}
    assert tokens <= set(buckets)
    assert lengths <= {100, 200}


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_more_sequences_than_the_largest_bucket(add_backend, load, name):
    """They are decoded in several steps; the texts are the same."""
    add_backend("sized", token_buckets=(1, 2))
    settings = {"max_tokens": 9, "temperature": 0}
    prompts = [[1, 50 + i] for i in range(5)]
    plain = [load(name).generate(p, **settings).read() for p in prompts]
    model = load(name, device="sized", parallel=5)
    together = [model.generate(p, **settings) for p in prompts]
    assert plain == [g.read() for g in together]


def test_an_encoder_is_padded(add_backend, load, oracle):
    """Padding tokens are seen by nobody."""
    add_backend("sized", token_buckets=(8, 32, 128))
    data, model = oracle("bert"), load("bert", device="sized")
    assert np.abs(model.hidden(data["ids"]) - data["ref"]).max() <= 1e-4
    assert (3, data["ref"].shape[1]) == model.hidden(data["ids"][:3]).shape


def test_an_encoder_reads_a_text_at_once(load, oracle):
    """Its tokens see each other: a small `ubatch` cuts nothing."""
    data, model = oracle("bert"), load("bert", ubatch=4)
    assert len(data["ids"]) > 4
    assert np.abs(model.hidden(data["ids"]) - data["ref"]).max() <= 1e-4


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_context_that_is_longer_than_the_device_can(add_backend, load, name):
    """Refused at load, with both numbers."""
    add_backend("sized", token_buckets=(64,), length_buckets=(100,))
    with pytest.raises(DeviceError) as caught:
        load(name, device="sized", ctx=120)
    assert "lower ctx" == caught.value.do
    assert str(caught.value.got) in ("120", "183")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("llama", None, 100), ("llama", 80, 80), ("bert", None, 32), ("bert", 7, 7)],
)
def test_a_context_that_nobody_asked_for(add_backend, load, name, given, expected):
    """It is no longer than the device can."""
    add_backend("sized", token_buckets=(8, 32), length_buckets=(50, 100))
    assert load(name, device="sized", ctx=given).ctx == expected


def test_to_the_end_of_the_longest_context(add_backend, load, oracle):
    """Where padding would lie beyond it, a prompt goes on in pieces that need none."""
    add_backend("sized", token_buckets=(4, 16), length_buckets=(24,))
    data, model = oracle("llama"), load("llama", device="sized", ctx=None)
    assert model.ctx == 24 <= len(data["ids"])
    for first in (1, 16, 21, 22, 23):
        with model.open() as session:
            rows = [session.feed(data["ids"][:first]), session.feed(data["ids"][first:24])]
        assert np.abs(rows - data["ref"][[first - 1, 23]]).max() <= 1e-4
    generation = model.generate(data["ids"][:22], temperature=0)
    generation.read()
    assert (2, "length") == (len(generation.tokens), generation.finish_reason)
