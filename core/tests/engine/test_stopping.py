"""Cancelling, Ctrl-C and closing, at whatever moment."""

from __future__ import annotations

import signal
import threading

import pytest
from umbel.engine import Engine
from umbel.errors import CancelledError, UmbelError


def begin(engine, runner, job):
    """Submits a job and waits until its step runs; the step is held."""
    runner.hold()
    engine.submit(job)
    runner.wait_for(len(runner.steps) + 1)


def soon(function):
    """Runs it on another thread while this one waits."""
    timer = threading.Timer(0.1, function)
    timer.start()
    return timer


def ctrl_c():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_cancel_in_prefill_stops_the_step(start, new_job, finish):
    """The device is told, and the sequence is what it was before the request."""
    engine, runner = start(ubatch=2)
    job = new_job([1, 2, 3, 4, 5], tokens=[1])
    begin(engine, runner, job)
    engine.cancel(job, 0)
    assert ([], "cancelled") == (finish(job)[0], "cancelled")
    assert 1 == runner.cancels
    assert ([], [1]) == (job.sequence.tokens, job.tokens)
    assert runner.cache.cells.free == len(runner.cache.cells.references) - 1


def test_cancel_in_decode(start, new_job, finish):
    """The step is stopped; what was sampled before stays."""
    engine, runner = start()
    job = new_job([1], 1000)
    begin(engine, runner, job)
    runner.allow(2)
    engine.cancel(job, 2)
    events, done = finish(job)
    assert ([2, 3], "cancelled") == ([e.id for e in events], done.reason)
    assert ([1, 2], [1, 2, 3]) == (job.sequence.tokens, job.tokens)
    assert 1 == runner.cancels


def test_what_nobody_has_read_is_taken_back_once(start, new_job, finish):
    """Also when the step that the cancel stopped has ended the job already."""
    engine, runner = start()
    job = new_job([1], 1000)
    begin(engine, runner, job)
    runner.allow(4)
    engine.cancel(job, 3)
    assert 1 == runner.cancels
    assert [1, 2, 3, 4] == job.tokens == job.sequence.tokens


def test_a_neighbour_is_not_stopped(start, new_job, finish):
    """A step that somebody still wants goes on."""
    engine, runner = start()
    one, two = new_job([1], 6), new_job([10], 6)
    begin(engine, runner, one)
    engine.submit(two)
    runner.allow(3)
    assert 2 == len(runner.steps[-1])
    soon(runner.free)
    engine.cancel(one, 0)
    assert "cancelled" == finish(one)[1].reason
    assert list(range(11, 17)) == [e.id for e in finish(two)[0]]
    assert 0 == runner.cancels


def test_the_last_of_a_batch_stops_its_step(start, new_job, finish):
    """When nobody wants a step any more, it is stopped."""
    engine, runner = start()
    one, two = new_job([1], 60), new_job([10], 60)
    begin(engine, runner, one)
    engine.submit(two)
    runner.allow(3)
    assert 2 == len(runner.steps[-1])
    engine.cancel(one, 0, wait=False)
    assert 0 == runner.cancels
    engine.cancel(two, 0)
    assert 1 == runner.cancels
    assert ["cancelled"] * 2 == [finish(j)[1].reason for j in (one, two)]


def test_a_waiting_job_ends_at_once(start, new_job, finish):
    """Nobody waits for a place only to be told that it is over."""
    engine, runner = start(parallel=1)
    one, two = new_job([1], 500, keep=0), new_job([31, 31])
    begin(engine, runner, one)
    engine.submit(two)
    soon(runner.free)
    engine.cancel(two, 0)
    assert "cancelled" == finish(two)[1].reason
    assert [[31, 31]] not in runner.steps
    assert 500 == len([e for e in finish(one)[0] if hasattr(e, "text")])


def test_cancel_after_the_end_takes_tokens_back(start, new_job, finish):
    """Who read less than was sampled can give the rest back."""
    engine, _ = start()
    job = new_job([1])
    engine.submit(job)
    finish(job)
    assert [1, 2, 3, 4] == job.tokens
    engine.cancel(job, 2)
    assert [1, 2, 3] == job.tokens == job.sequence.tokens
    assert job.events.empty()


def test_calls_run_between_steps(start, new_job, finish):
    """A call sees no sequence in the middle of a step, and its error comes back."""
    engine, runner = start()
    job = new_job([1], 3)
    begin(engine, runner, job)
    soon(runner.free)
    tokens, cells = engine.call(lambda: (list(job.sequence.tokens), len(job.sequence.cells)))
    assert [1, 2] == tokens
    assert 2 == cells
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 // 0)
    assert "umbel" == engine.call(lambda: engine.call(lambda: threading.current_thread().name))
    finish(job)


def test_ctrl_c_stops_a_call(start):
    """The device is told; nobody waits for the call's natural end."""
    engine, runner = start()
    began, told = threading.Event(), threading.Event()
    runner.ask = told.set

    def work():
        began.set()
        told.wait(10)
        raise CancelledError("stopped")

    timer = threading.Thread(target=lambda: (began.wait(5), soon(ctrl_c)))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.call(work)
    timer.join()
    assert told.is_set()
    assert 7 == engine.call(lambda: 7)


def test_ctrl_c_takes_back_a_call_that_has_not_begun(start, new_job, finish):
    """It never runs, and who computes meanwhile is not disturbed."""
    engine, runner = start()
    job, ran = new_job([1]), []
    begin(engine, runner, job)
    soon(ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        engine.call(lambda: ran.append(1))
    runner.free()
    assert [2, 3, 4] == [e.id for e in finish(job)[0]]
    engine.call(lambda: None)
    assert ([], 0) == (ran, runner.cancels)


def test_closing_ends_everything(start, new_job, finish):
    """Jobs that run and jobs that wait end as cancelled; later ones are refused."""
    engine, runner = start(parallel=1)
    jobs = [new_job([1], 60), new_job([5]), new_job([8])]
    begin(engine, runner, jobs[0])
    for job in jobs[1:]:
        engine.submit(job)
    engine.close()
    assert ["cancelled"] * 3 == [finish(j)[1].reason for j in jobs]
    for call in (lambda: engine.submit(new_job([1])), lambda: engine.call(int)):
        with pytest.raises(UmbelError, match="closed"):
            call()
    engine.cancel(jobs[0], 0)
    engine.close()
    assert engine.closed


def test_closing_an_engine_that_never_ran():
    """There is nothing to wait for."""
    Engine(None).close()  # type: ignore[arg-type]


def test_closing_from_two_threads_while_others_ask(start, new_job, finish):
    """Every caller gets an answer or an error; none hangs."""
    engine, _ = start(parallel=2)
    answers = []

    def ask(i):
        try:
            for _ in range(200):
                job = new_job([i], 2)
                engine.submit(job)
                finish(job)
        except UmbelError as error:
            answers.append(error.what)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    threads += [threading.Timer(0.02, engine.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(t.is_alive() for t in threads)
    assert {"the model is closed"} >= set(answers)
