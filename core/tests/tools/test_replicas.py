"""A model that is there several times: who gets the next sequence."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import umbel
from umbel.errors import DeviceError, OptionError
from umbel.tools.replicas import Replicas

ORACLES = Path(__file__).parents[1] / "data/oracles"
STORY = ORACLES / "stories260K.gguf"
PROMPTS = [f"Once upon a time there were {n} dogs" for n in range(6)]


@pytest.fixture
def replicas():
    with Replicas.load(STORY, ["host", "host"], ctx=64, parallel=4) as loaded:
        yield loaded


def test_texts_are_those_of_one_model(replicas):
    """Whoever computes them, all at once."""
    with umbel.load(STORY, "host", ctx=64) as alone:
        expected = [alone.generate(p, max_tokens=12, temperature=0).read() for p in PROMPTS]
    running = [replicas.generate(p, max_tokens=12, temperature=0) for p in PROMPTS]
    assert [generation.read() for generation in running] == expected


def test_they_take_turns(replicas):
    """Where none has more to do; sessions that are open and do nothing do not count."""
    first, second = replicas.models
    assert [replicas.next() for _ in range(4)] == [first, second, first, second]
    with first.open() as held:
        held.feed("Once upon a time")
        assert [replicas.next() for _ in range(3)] == [first, second, first]


def test_a_job_counts_more_than_the_turn(replicas):
    first, second = replicas.models
    goes_on = threading.Event()
    with second.open() as held:
        held.feed("Once upon a time")
        first.engine.post(goes_on.wait)
        running = first.generate("Once upon", max_tokens=2, temperature=0)
        assert [replicas.next() for _ in range(2)] == [second] * 2
        goes_on.set()
        running.read()


def test_sessions_and_embeddings(replicas):
    with replicas.open() as session:
        assert session.model in replicas.models
    np.testing.assert_array_equal(replicas.embed("a b"), replicas.embed("a b"))


def test_one_that_cannot_be_loaded_leaves_none():
    with pytest.raises(DeviceError, match="no device"):
        Replicas.load(STORY, ["host", "missing"])
    with pytest.raises(OptionError, match="nothing to deal"):
        Replicas.load(STORY, [])
