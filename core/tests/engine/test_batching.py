"""Which sequences share a step, and what becomes of the others when one goes wrong."""

from __future__ import annotations

import threading
import time

import pytest
from umbel.errors import ContextFullError, SamplingError
from umbel.generation import Token


def test_a_job_gives_its_tokens_and_its_end(start, new_job, finish):
    """Events come in order: tokens, then the reason of the end."""
    engine, runner = start()
    job = new_job([3, 4, 5])
    engine.submit(job)
    events, done = finish(job)
    assert [Token(6, "6 "), Token(7, "7 "), Token(8, "8 ")] == events
    assert ("length", None) == (done.reason, done.error)
    assert [3, 4, 5, 6, 7] == job.sequence.tokens
    assert [3, 4, 5, 6, 7, 8] == job.tokens
    assert [[[3, 4, 5]], [[6]], [[7]]] == runner.steps


def test_a_long_prompt_holds_nobody_up(start, new_job, finish, submit_together, ids):
    """Between two pieces of it everybody else gets a token."""
    engine, runner = start(ubatch=2)
    short, long = new_job([1], 4), new_job([10, 11, 12, 13, 14, 15], 2)
    submit_together(engine, runner, [short, long])
    assert [2, 3, 4, 5] == ids(finish(short)[0])
    assert [16, 17] == ids(finish(long)[0])
    expected = [[[1]], [[2]], [[10, 11]], [[3]], [[12, 13]], [[4]], [[14, 15]], [[16]]]
    assert expected == runner.steps


def test_sequences_join_and_leave_between_steps(start, new_job, finish, submit_together, ids):
    """A step has all who decode at that moment."""
    engine, runner = start(parallel=3)
    jobs = [new_job([1], 5), new_job([10], 2), new_job([20], 3)]
    submit_together(engine, runner, jobs)
    assert [[2, 3, 4, 5, 6], [11, 12], [21, 22, 23]] == [ids(finish(j)[0]) for j in jobs]
    decoding = [s for s in runner.steps if s not in ([[1]], [[10]], [[20]])]
    assert [[[2]], [[3], [11]], [[4], [21]], [[5], [22]]] == decoding


def test_no_more_than_parallel_decode(start, new_job, finish, submit_together, ids):
    """The others wait for a place."""
    engine, runner = start(parallel=2)
    jobs = [new_job([i], 4) for i in range(6)]
    submit_together(engine, runner, jobs)
    assert all(len(ids(finish(j)[0])) == 4 for j in jobs)
    assert 2 == max(map(len, runner.steps))


def test_a_device_with_a_widest_step_gets_no_wider_one(
    start, new_job, finish, submit_together, ids
):
    """Those who decode are then computed in several steps."""
    engine, runner = start(parallel=5)
    runner.widest = 2
    jobs = [new_job([i], 6) for i in range(5)]
    submit_together(engine, runner, jobs)
    assert [list(range(i + 1, i + 7)) for i in range(5)] == [ids(finish(j)[0]) for j in jobs]
    assert 2 == max(map(len, runner.steps))


def test_a_failing_step_ends_only_its_jobs(start, new_job, finish, submit_together, ids):
    """One prompt fails; who decodes beside it goes on; the sequence is what it was."""
    engine, runner = start()
    good, bad = new_job([1], 6), new_job([10, 11, 12, 13, 14, 15])
    runner.bad_tokens.add(14)
    submit_together(engine, runner, [good, bad])
    events, done = finish(bad)
    assert ([], "error", "a bad token") == (events, done.reason, str(done.error))
    assert ([], [], 0) == (bad.tokens, bad.sequence.tokens, len(bad.sequence.cells))
    assert [2, 3, 4, 5, 6, 7] == ids(finish(good)[0])
    later = new_job([20])
    engine.submit(later)
    assert [21, 22, 23] == ids(finish(later)[0])


def test_a_failing_decode_leaves_all_its_sequences_as_they_were(
    start, new_job, finish, submit_together
):
    """Both of the batch end, each with the token that was sampled and not computed."""
    engine, runner = start()
    jobs = [new_job([1], 9), new_job([10], 9)]
    runner.bad_tokens.add(13)
    submit_together(engine, runner, jobs)
    assert ["error", "error"] == [finish(j)[1].reason for j in jobs]
    assert [10, 11, 12] == jobs[1].sequence.tokens
    assert [10, 11, 12, 13] == jobs[1].tokens
    assert jobs[0].tokens == list(range(1, 6)) == [*jobs[0].sequence.tokens, 5]
    assert all(len(j.sequence.cells) == len(j.sequence.tokens) for j in jobs)


def test_logits_that_are_not_finite_end_one_job(start, new_job, finish, submit_together, ids):
    """S02: the sampler's error is that job's alone."""
    engine, runner = start()
    jobs = [new_job([1], 6), new_job([10], 6)]
    runner.bad_logits.add(12)
    submit_together(engine, runner, jobs)
    events, done = finish(jobs[1])
    assert [11, 12] == ids(events)
    assert isinstance(done.error, SamplingError)
    assert [2, 3, 4, 5, 6, 7] == ids(finish(jobs[0])[0])


def test_an_end_that_fails_does_not_stop_the_others(start, new_job, finish, monkeypatch, ids):
    """What giving a place back raises becomes that job's error."""

    def fail(sequence):
        raise OSError("no more")

    engine, runner = start()
    job = new_job([1], transient=True)
    monkeypatch.setattr(runner.cache, "close", fail)
    engine.submit(job)
    assert "no more" == str(finish(job)[1].error)
    monkeypatch.undo()
    other = new_job([5])
    engine.submit(other)
    assert [6, 7, 8] == ids(finish(other)[0])


@pytest.mark.parametrize(("ctx", "prompt", "expected"), [(8, 4, 4), (8, 7, 1), (6, 1, 5)])
def test_a_full_context_ends_a_job(start, new_job, finish, ctx, prompt, expected, ids):
    """Prompt and answer together are as long as the context, and not a token longer."""
    engine, _ = start(ctx=ctx)
    job = new_job(list(range(prompt)), 100)
    engine.submit(job)
    events, done = finish(job)
    assert expected == len(ids(events))
    assert "length" == done.reason
    assert ctx == len(job.tokens) == len(job.sequence) + 1


def test_a_full_context_is_shifted_when_asked(start, new_job, finish, ids):
    """The job says how much was dropped; the answer goes on to its end."""
    engine, _ = start(ctx=8)
    job = new_job([0, 1, 2], 15, keep=2)
    engine.submit(job)
    events, done = finish(job)
    assert list(range(3, 18)) == ids(events)
    assert [3] * 3 == [len(tokens) for _, tokens in job.shifts]
    assert "length" == done.reason
    assert [0, 1] == job.sequence.tokens[:2]
    assert [*job.sequence.tokens, 17] == job.tokens


def test_who_finds_no_room_ends_alone(start, new_job, finish, submit_together, ids):
    """Where open sessions hold the cells, the newest job gives way."""
    engine, runner = start(cells=14)
    runner.cache.cells.take(2)
    jobs = [new_job([1, 2, 3], 8), new_job([11, 12, 13], 8, transient=True)]
    submit_together(engine, runner, jobs)
    events, done = finish(jobs[1])
    assert isinstance(done.error, ContextFullError)
    assert 3 <= len(ids(events)) < 8
    assert list(range(4, 12)) == ids(finish(jobs[0])[0])


def test_max_tokens_0_computes_the_prompt_only(start, new_job, finish):
    """S06: nothing is sampled, the reason is the length."""
    engine, runner = start()
    job = new_job([1, 2, 3, 4, 5], 0)
    engine.submit(job)
    events, done = finish(job)
    assert ([], "length") == (events, done.reason)
    assert [1, 2, 3, 4, 5] == job.sequence.tokens
    assert 2 == len(runner.steps)


def test_end_of_text_and_stop_strings(start, new_job, finish, text):
    """Both are "stop"; no token after them is computed."""
    engine, runner = start()
    ended, stopped = new_job([1], 9, stop_ids={4}), new_job([1], 9, output=text(4))
    for job in (ended, stopped):
        engine.submit(job)
        events, done = finish(job)
        assert ["2 ", "3 ", ""] == [e.text for e in events]
        assert "stop" == done.reason
        assert [1, 2, 3, 4] == job.tokens == [*job.sequence.tokens, 4]
    assert [[1], [2], [3]] * 2 == [s[0] for s in runner.steps]


def test_many_threads_submit(start, new_job, finish, ids):
    """Sixteen at once each get their own tokens."""
    engine, _ = start(parallel=4)
    out = {}

    def ask(i):
        job = new_job([i], 5)
        engine.submit(job)
        out[i] = ids(finish(job)[0])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {i: list(range(i + 1, i + 6)) for i in range(16)} == out


@pytest.mark.clock
def test_times_are_taken_where_tokens_are_made(start, new_job, finish):
    """A slow reader changes no figure."""
    engine, _ = start()
    job = new_job([1], 5)
    began = time.perf_counter()
    engine.submit(job)
    time.sleep(0.3)
    times = [began, *(event.at for event in finish(job)[0])]
    assert 6 == len(times)
    assert sorted(times) == times
    assert times[-1] - began < 0.3
