"""What requests share, whose prompt goes on, and how long its pieces are."""

from __future__ import annotations

import pytest
from umbel.engine import Engine
from umbel.pace import LEAST, Pace
from umbel.server.prefix import Prefixes

PROMPT = [i % 20 for i in range(20)]


@pytest.fixture
def shared(start):
    engine, runner = start(ubatch=64, parallel=3)
    engine.shared = Prefixes(runner.cache)
    return engine, runner


def test_a_prompt_goes_on_from_what_was_computed(shared, new_job, finish, ids):
    """K01: the last token at least is computed again, and the answer is the same."""
    engine, runner = shared
    answers = []
    for _ in range(3):
        job = new_job(PROMPT, transient=True)
        engine.submit(job)
        answers.append(ids(finish(job)[0]))
    assert [[20, 21, 22]] * 3 == answers
    assert [[PROMPT], [[20]], [[21]], [[19]], [[20]], [[21]]] == runner.steps[:6]
    assert job.cached == 19


def test_a_follow_up_begins_with_the_answer(shared, new_job, finish, ids):
    engine, runner = shared
    first = new_job(PROMPT, transient=True)
    engine.submit(first)
    answer = ids(finish(first)[0])
    second = new_job([*PROMPT, *answer, 5], transient=True)
    engine.submit(second)
    finish(second)
    assert second.cached == len(PROMPT) + len(answer) - 1  # its last token was not computed
    assert [[22, 5]] in runner.steps


def test_a_prompt_goes_on_from_who_still_decodes(shared, new_job, finish, submit_together, ids):
    engine, runner = shared
    jobs = [new_job(PROMPT, 8, transient=True), new_job([*PROMPT, 3], 8, transient=True)]
    submit_together(engine, runner, jobs)
    assert [list(range(20, 28)), list(range(4, 12))] == [ids(finish(j)[0]) for j in jobs]
    assert jobs[1].cached == 20


@pytest.mark.parametrize("how", ["error", "session"])
def test_what_failed_or_is_somebodys_is_not_kept(shared, new_job, finish, how):
    engine, runner = shared
    job = new_job(PROMPT, transient=how == "error")
    if how == "error":
        runner.bad_logits.add(20)
    engine.submit(job)
    finish(job)
    assert not len(engine.shared)


def test_kept_cells_make_room(start, new_job, finish, submit_together):
    """Who comes next finds as much room as if nothing were kept."""
    engine, runner = start(cells=40, ubatch=64, parallel=2)
    engine.shared = Prefixes(runner.cache)
    for first in (0, 1, 2, 3):
        job = new_job([first, *PROMPT], transient=True)
        engine.submit(job)
        assert finish(job)[1].error is None
    beside = [new_job([i, *PROMPT[:15]], transient=True) for i in (10, 11)]
    submit_together(engine, runner, beside)
    assert [finish(j)[1].reason for j in beside] == ["length", "length"]


def test_a_short_prompt_passes_a_long_one(start, new_job, finish, submit_together, ids):
    """Every other piece is its own: who comes later and wants little does not wait for all."""
    engine, runner = start(ubatch=2, parallel=3)
    long, short = new_job(list(range(10)), 1), new_job([21, 22, 23], 1)
    submit_together(engine, runner, [long, short])
    assert [24] == ids(finish(short)[0])
    assert [10] == ids(finish(long)[0])
    assert runner.steps == [
        [[0, 1]],
        [[21, 22]],
        [[2, 3]],
        [[23]],
        [[4, 5]],
        [[6, 7]],
        [[8, 9]],
    ]


def test_short_prompts_do_not_keep_a_long_one_waiting(
    start, new_job, finish, submit_together, ids
):
    """Ten come in its way; it has every other piece."""
    engine, runner = start(ubatch=2, parallel=12)
    long = new_job([0, 1, 2, 3, 4, 5], 1)
    others = [new_job([20 + i, 21 + i], 1) for i in range(10)]
    submit_together(engine, runner, [long, *others])
    assert [6] == ids(finish(long)[0])
    assert runner.steps.index([[4, 5]]) <= 5


def test_who_has_no_place_is_not_passed(start, new_job, finish, submit_together):
    """The first in the queue waits for cells; those behind it wait, too."""
    engine, runner = start(cells=20, ubatch=64, parallel=3)
    first = new_job(list(range(12)), 4, transient=True)
    large, small = new_job(list(range(10)), 2, transient=True), new_job([25], 2)
    submit_together(engine, runner, [first, large, small])
    assert [finish(j)[1].reason for j in (first, large, small)] == ["length"] * 3
    prompts = [s[0] for s in runner.steps if (len(s) == 1 and len(s[0]) > 1) or s == [[25]]]
    assert prompts == [list(range(12)), list(range(10)), [25]]


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [(1e-3, 0.02, 64), (1e-3, 1, 2048), (1, 0.1, LEAST), (1e-3, 0.0, LEAST)],
)
def test_a_piece_takes_as_long_as_four_steps(prefill, decode, expected):
    pace = Pace({"prefill": prefill, "decode": decode} if decode else {"prefill": prefill})
    assert pace.piece == expected


def test_pieces_are_short_while_others_decode(start, new_job, finish, submit_together):
    engine, runner = start(ubatch=64, ctx=256, parallel=2)
    engine._pace.seconds = {"prefill": 1e9, "decode": 1e-9}
    many = [i % 20 for i in range(100)]
    submit_together(engine, runner, [new_job([25], 6), job := new_job(many, 1)])
    finish(job)
    pieces = [len(s[0]) for s in runner.steps if len(s[0]) > 1]
    assert pieces == [LEAST, LEAST, LEAST, 4]


def test_an_engine_without_others_prefills_in_one_piece(start, new_job, finish):
    engine, runner = start(ubatch=64, ctx=256)
    assert isinstance(engine, Engine)
    engine._pace.seconds = {"prefill": 1e9, "decode": 1e-9}
    engine.submit(job := new_job([i % 20 for i in range(60)], 1))
    finish(job)
    assert len(runner.steps[0][0]) == 60
