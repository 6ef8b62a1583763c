"""Faults of devices and of the core itself: somebody is told, and nobody waits for ever."""

from __future__ import annotations

import asyncio

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


def test_a_device_that_cancels_unasked(open_runner, monkeypatch):
    """It is at fault; the sequence is as it was, and its places are free again."""
    runner, sequence = open_runner("lfm2"), Sequence()
    runner.forward(sequence, [1, 2, 3])
    free, run = runner.cache.cells.free, Plan._run

    def cancelled(plan, *args):
        run(plan, *args)
        raise CancelledError("the step was cancelled")

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "_run", cancelled)
        with pytest.raises(DeviceError, match="nobody wanted cancelled"):
            runner.forward(sequence, [4, 5])
        runner.stop.asked = True
        with pytest.raises(CancelledError):
            runner.forward(sequence, [4, 5])
    runner.stop.asked = False
    assert ([1, 2, 3], free) == (sequence.tokens, runner.cache.cells.free)
    expected = runner.forward(Sequence(), [1, 2, 3, 4, 5])
    np.testing.assert_allclose(runner.forward(sequence, [4, 5]), expected, atol=1e-4)
