"""Faults of devices and of the core itself: somebody is told, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
import types

import numpy as np
import pytest
from umbel.errors import CancelledError, DeviceError
from umbel.plan import Plan
from umbel.state import Cache, Sequence

INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_an_interrupt_that_a_device_raises(start, new_job, finish, kind):
    """It is the job's error, and the call's; the engine goes on."""
    engine, runner = start()

    def interrupt(*args):
        raise kind("from a plugin")

    compute, runner._compute = runner._compute, interrupt
    job = new_job([1])
    engine.submit(job)
    error = finish(job)[1].error
    assert (DeviceError, kind) == (type(error), type(error.__cause__))
    with pytest.raises(DeviceError, match="from a plugin"):
        engine.call(interrupt)
    runner._compute = compute
    job = new_job([1])
    engine.submit(job)
    assert "length" == finish(job)[1].reason


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_fault_between_steps_ends_all_jobs(start, new_job, finish, monkeypatch, kind):
    """Nobody waits for an engine that has failed; later requests are served."""
    engine, _ = start()

    def room(self):
        raise kind("no room at all")

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "room", property(room))
        jobs = [new_job([1]), new_job([9])]
        for job in jobs:
            engine.submit(job)
        for job in jobs:
            done = finish(job)[1]
            assert "error" == done.reason
            assert "no room at all" in str(done.error)
    assert 7 == engine.call(lambda: 7)
    job = new_job([1])
    engine.submit(job)
    assert "length" == finish(job)[1].reason


def test_an_end_that_fails_is_an_end(start, new_job, finish):
    """Also when what it held back cannot be told."""
    engine, _ = start()
    job = new_job([1])
    job.output.flush = lambda: 1 // 0
    engine.submit(job)
    assert ZeroDivisionError is type(finish(job)[1].error)


def device(name, cancel):
    """As much of a target as a cancel needs."""
    hooks = types.SimpleNamespace(cancel=cancel)
    return types.SimpleNamespace(name=name, device=name, hooks=hooks)


def test_a_device_that_cannot_be_told_to_stop(start, new_job, finish, caplog):
    """The others are; the step goes on to its end; cancelling and closing do too."""
    engine, runner = start()
    told = []
    runner.targets = [device("deaf", lambda _: 1 // 0), device("hearing", told.append)]
    for end in (lambda job: engine.cancel(job, 0), lambda job: engine.close()):
        job = new_job([1], 1000)
        runner.hold()
        begun = len(runner.steps)
        engine.submit(job)
        runner.wait_for(begun + 1)
        with caplog.at_level(logging.WARNING, "umbel"):
            caplog.clear()
            end(job)
        assert "deaf could not be told to stop: integer division" in caplog.text
        assert ["hearing"] == told
        told.clear()
        assert "cancelled" == finish(job)[1].reason


def stray(monkeypatch, times):
    """Runs of plans are cancelled so often after they have done their work; the runs."""
    run, runs = Plan.run, []

    def cancelled(plan, *args):
        runs.append(plan)
        results = run(plan, *args)
        if len(runs) <= times:
            raise CancelledError("the step was cancelled")
        return results

    monkeypatch.setattr(Plan, "run", cancelled)
    return runs


def test_a_device_that_always_cancels(open_runner, monkeypatch):
    """After a few runs it is an error, and the places are free again."""
    runner = open_runner("llama")
    free, runs = runner.cache.cells.free, stray(monkeypatch, 1000)
    with pytest.raises(DeviceError, match="nobody wants cancelled"):
        runner.forward(Sequence(), [1, 2, 3])
    assert len(runs) < 20
    assert free == runner.cache.cells.free


def test_a_recurrent_step_runs_again(open_runner, monkeypatch):
    """It begins from the state before it, whatever the run that was cancelled wrote."""
    runner = open_runner("lfm2")
    expected = runner.forward(Sequence(), [1, 2, 3])
    stray(monkeypatch, 2)
    assert np.array_equal(expected, runner.forward(Sequence(), [1, 2, 3]))


def test_an_encoder_does_not_obey_a_cancel_meant_for_others(open_runner, monkeypatch):
    """Unless this model was meant."""
    runner = open_runner("bert")
    expected = runner.forward(Sequence(), [1, 2, 3], every=True)
    stray(monkeypatch, 2)
    assert np.array_equal(expected, runner.forward(Sequence(), [1, 2, 3], every=True))
    runner.cancelled = True
    with pytest.raises(CancelledError):
        runner.forward(Sequence(), [1, 2, 3], every=True)


def test_a_shift_does_not_obey_a_cancel_meant_for_others(open_runner, monkeypatch):
    """Keys that may be turned already are not turned twice: they are computed anew."""
    runner, sequence, fresh = open_runner("llama"), Sequence(), Sequence()
    ids = list(range(1, 25))
    runner.forward(sequence, ids)
    with monkeypatch.context() as patch:
        stray(patch, 1)
        assert 10 == runner.shift(sequence, 4)
    assert [*ids[:4], *ids[14:]] == sequence.tokens
    runner.forward(fresh, sequence.tokens)
    logits = runner.decode([sequence, fresh], [7, 7])
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4
