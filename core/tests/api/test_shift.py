"""Contexts that are full: what is dropped, and what the rest then gives."""

from __future__ import annotations

import time

import numpy as np
import pytest
from umbel.errors import OptionError

SETTINGS = {"temperature": 0, "max_tokens": 100, "logit_bias": {2: -99.0, 0: -99.0, 1: -99.0}}
IDS = [1, *range(100, 109)]


@pytest.mark.parametrize("keep", [31, 30, 28, -1, True, "4", 1e308])
def test_a_keep_that_leaves_nothing_to_drop(shared, keep):
    """K06: refused with the name, before anything runs."""
    with pytest.raises(OptionError) as caught:
        shared("llama", ctx=32).generate(IDS, keep=keep)
    assert "keep" == caught.value.where


@pytest.mark.parametrize("keep", [0, 4, 27])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mamba", "lfm2"])
def test_an_answer_longer_than_the_context(shared, name, keep):
    """K06: it ends where it was asked to, and says how much was dropped."""
    generation = shared(name, ctx=32).generate(IDS, keep=keep, **SETTINGS)
    generation.read()
    assert (100, "length") == (len(generation.tokens), generation.finish_reason)
    assert 10 + 100 - 32 <= generation.dropped <= 10 + 100


def test_an_answer_that_is_stopped_tells_what_was_dropped(load):
    """As one that comes to its end does."""
    generation = load("llama", ctx=32).generate(IDS, keep=4, **SETTINGS | {"max_tokens": None})
    while len(generation.tokens) < 60:
        next(generation)
    generation.close()
    assert ("cancelled", True) == (generation.finish_reason, generation.dropped >= 10 + 60 - 32)


@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mamba", "lfm2"])
def test_shifts_that_came_before_the_reader_did(shared, name, n):
    """A session goes on after what was read: what made room for tokens beyond is undone."""
    model = shared(name, ctx=32)
    settings = SETTINGS | {"max_tokens": 90, "keep": 4}
    with model.open() as session:
        generation = session.generate(IDS, **settings)
        while len(generation.tokens) < n:
            next(generation)
        model.engine.call(lambda: None)
        while not generation._job.ended:  # far ahead of the reader
            time.sleep(0.001)
        generation.close()
        read = [*IDS, *generation.tokens]
        assert read[: 4 * (n > 20)] == session.tokens[: 4 * (n > 20)]
        assert len(read) - generation.dropped == len(session) <= 33
        if len(read) <= 32:
            assert read == session.tokens
            assert np.abs(model.logits(read)[-1] - session.feed()).max() < 1e-4
        else:
            assert read[generation.dropped + 4 :] == session.tokens[4:]


@pytest.mark.parametrize("name", ["gpt2", "mamba", "mamba2", "lfm2"])
def test_what_has_no_rotary_keys_is_prefilled_again(shared, name):
    """Each token after a shift is that of a cold start with what was left."""
    model = shared(name, ctx=32)
    with model.open() as session:
        session.feed(IDS * 3)
        session.generate(keep=4, **SETTINGS | {"max_tokens": 7}).read()
        left = session.tokens
        assert IDS[:4] == left[:4]
        assert len(left) < 30
        cold = model.logits(left[:-1])[-1]
        assert np.abs(cold - session._engine.call(lambda: again(session))).max() < 1e-4


def again(session):
    """The logits before the last sampled token, from the session's own state."""
    runner = session._engine.runner
    with_state = runner.cache.fork(session._sequence)
    last = with_state.tokens[-1]
    left = runner.cache.rewind(with_state, len(with_state) - 1)
    logits = runner.forward(with_state, [*session._sequence.tokens[left:-1], last])
    runner.cache.close(with_state)
    return logits[0]


def test_others_who_share_the_past_keep_it(shared):
    """A fork's keys are not turned under its feet."""
    model = shared("llama", ctx=32, parallel=4)
    with model.open() as session:
        session.feed(IDS * 3)
        with session.fork() as other:
            session.generate(keep=4, **SETTINGS | {"max_tokens": 9}).read()
            assert IDS * 3 == other.tokens
            expected = model.logits([*IDS * 3, 7])[-1]
            assert np.abs(expected - other.feed([7])).max() < 1e-4


def test_a_shifted_context_is_not_resumed(shared):
    """Its states know of what was dropped: a text never depends on what was cached."""
    model = shared("llama", ctx=32)
    with model.open() as session:
        session.feed(IDS * 3)
        session.generate(keep=4, **SETTINGS | {"max_tokens": 9}).read()
        left = session.tokens[:20]
        assert 0 == session.resume(left)
        assert np.abs(model.logits(left)[-1] - session.feed()).max() < 1e-4
        assert 19 == session.resume(left)


def test_a_restored_shifted_context_is_not_resumed(shared, tmp_path):
    """Saving and restoring does not make it one that was never shifted."""
    model = shared("llama", ctx=32)
    with model.open() as session:
        session.feed(IDS * 3)
        session.generate(keep=4, **SETTINGS | {"max_tokens": 9}).read()
        session.save(tmp_path / "s")
    with model.restore(tmp_path / "s") as session:
        left = session.tokens[:20]
        assert 0 == session.resume(left)
        assert np.abs(model.logits(left)[-1] - session.feed()).max() < 1e-4


@pytest.mark.parametrize("name", ["llama", "gpt2", "lfm2"])
def test_a_shift_that_fails_loses_no_token(load, monkeypatch, name):
    """The error ends the answer; the session goes on from all that was there."""
    model = load(name, ctx=32)
    runner = model.runner

    def fail(*args, **kwargs):
        raise OSError("no more")

    with model.open() as session:
        session.feed(IDS * 3)
        with monkeypatch.context() as patch:
            patch.setattr(runner, "forward", fail)
            patch.setattr(runner, "make", fail)
            generation = session.generate(keep=4, **SETTINGS)
            with pytest.raises(OSError, match="no more"):
                generation.read()
        tokens = session.tokens
        assert [*IDS * 3, *generation.tokens] == tokens
        session.rewind(20)
        assert np.abs(model.logits(tokens[:20])[-1] - session.feed()).max() < 1e-4
