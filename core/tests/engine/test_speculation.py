"""What the engine does with drafts: no text changes, whatever is guessed."""

from __future__ import annotations

import time

import attrs
import pytest
from umbel.draft import Lookup
from umbel.engine import Engine
from umbel.errors import CancelledError, SamplingError
from umbel.sampling import Sampler, Settings

MODELS = (
    "llama",
    "qwen3moe",
    "gpt2",
    "gemma3-window",
    "phi3-window",
    "olmo3",
    "granite",
    "lfm2",
    "mamba",
    "mamba2",
    "falcon-mamba",
)


@attrs.define(slots=False)
class Guesser:
    """Guesses n + 1 after n, as the fake runner does, and 0 from the `wrong`-th on."""

    wrong: int = 99
    runners: tuple = ()
    asked: list[int] = attrs.field(factory=list)

    def propose(self, tokens, n):
        self.asked.append(n)
        return [tokens[-1] + i if i <= self.wrong else 0 for i in range(1, n + 1)]


def ids(events):
    return [e.id for e in events]


def lengths(runner):
    """Of the steps after the prompt."""
    return [len(step[0]) for step in runner.steps[1:]]


def answer(start, new_job, finish, draft, **fields):
    """A job with drafts after [1]; its events, its end, its runner."""
    engine, runner = start(draft, ubatch=64)
    job = new_job([1], fields.pop("max_tokens", 20), draft_max=15, **fields)
    engine.submit(job)
    return job, *finish(job), runner


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 5, 99])
def test_the_answer_is_that_without_drafts(start, new_job, finish, wrong):
    """The same tokens in the same order; the sequence holds what was said, and no guess."""
    draft = Guesser(wrong)
    job, events, done, runner = answer(start, new_job, finish, draft)
    assert list(range(2, 22)) == ids(events) == job.tokens[1:]
    assert "length" == done.reason
    assert job.tokens[:-1] == job.sequence.tokens
    assert len(job.sequence.tokens) == len(job.sequence.cells)
    assert runner.cache.cells.free == len(runner.cache.cells) - 1 - len(job.sequence)
    assert job.drafted == sum(draft.asked)
    assert job.accepted <= job.drafted


def test_a_step_says_many_tokens_where_the_draft_is_right(start, new_job, finish):
    """First 7, then 15, then as many as there is room for: steps of few sizes."""
    job, events, _, runner = answer(start, new_job, finish, Guesser(), max_tokens=30)
    assert [8, 16, 4, 1] == lengths(runner)
    assert 30 == len(events)
    assert 7 + 15 + 3 == job.drafted == job.accepted


def test_drafts_get_shorter_where_they_are_wrong(start, new_job, finish):
    """A step never has another number of tokens than 1, 2, 4, 8 or 16."""
    job, _, _, runner = answer(start, new_job, finish, Guesser(0))
    assert [8, *[4] * 15, 2, 2, 1] == lengths(runner)
    assert (0, 7 + 15 * 3 + 2) == (job.accepted, job.drafted)


def test_an_end_inside_an_accepted_run(start, new_job, finish, text):
    """Nothing is told after a token that ends the text, nor after a stop text."""
    for fields in ({"stop_ids": {5}}, {"output": text(5)}):
        job, events, done, _ = answer(start, new_job, finish, Guesser(), **fields)
        assert ["2 ", "3 ", "4 ", ""] == [e.text for e in events]
        assert "stop" == done.reason
        assert [1, 2, 3, 4, 5] == job.tokens == [*job.sequence.tokens, 5]
        assert 4 == job.accepted + 1


def test_max_tokens_and_the_context_are_bounds_for_drafts(start, new_job, finish):
    """Nothing is computed that nobody can get."""
    for n in range(1, 12):
        _, events, _, runner = answer(start, new_job, finish, Guesser(), max_tokens=n)
        assert n == len(events)
        assert n == sum(lengths(runner)) + 1
    engine, runner = start(Guesser(), ctx=13, ubatch=64)
    job = new_job([1], 100, draft_max=15)
    engine.submit(job)
    events, done = finish(job)
    assert ("length", 12) == (done.reason, len(events))
    assert 13 == len(job.tokens) == len(job.sequence) + 1
    assert 1 + sum(lengths(runner)) <= 13


def test_drafts_take_no_cells_that_are_not_there(start, new_job, finish):
    """Where sessions hold most of them, the answer is as long as without drafts."""
    answers = []
    for most in (0, 15):
        engine, _ = start(Guesser(), cells=14)
        job = new_job([1], 60, draft_max=most)
        engine.submit(job)
        events, done = finish(job)
        answers.append((ids(events), type(done.error), len(job.sequence)))
    assert answers[0] == answers[1]
    assert 14 == len(answers[0][0])


def test_a_full_context_is_shifted(start, new_job, finish):
    """Drafts go on after it."""
    engine, _ = start(Guesser(), ctx=8, ubatch=64)
    job = new_job([0, 1, 2], 15, keep=2, draft_max=15)
    engine.submit(job)
    events, done = finish(job)
    assert list(range(3, 18)) == ids(events)
    assert "length" == done.reason
    assert 0 < job.accepted
    assert job.shifts
    assert [0, 1] == job.sequence.tokens[:2]
    assert [*job.sequence.tokens, 17] == job.tokens


def test_accepted_tokens_that_nobody_has_read_are_taken_back(start, new_job, finish):
    """Also from the middle of a run."""
    engine, _ = start(Guesser(), ubatch=64)
    job = new_job([1], 20, draft_max=15)
    engine.submit(job)
    finish(job)
    engine.cancel(job, 5)
    assert [1, 2, 3, 4, 5, 6] == job.tokens == job.sequence.tokens


def test_who_decodes_with_others_gets_no_draft(start, new_job, finish):
    """Their steps are shared as ever; who is alone again gets drafts again."""
    engine, runner = start(Guesser(), ubatch=64)
    one, two = new_job([1], 20, draft_max=15), new_job([10], 4)
    runner.hold()
    engine.submit(one)
    runner.wait_for(1)
    engine.submit(two)
    runner.free()
    assert list(range(2, 22)) == ids(finish(one)[0])
    assert list(range(11, 15)) == ids(finish(two)[0])
    together = [step for step in runner.steps if len(step) == 2]
    assert together
    assert all(len(row) == 1 for step in together for row in step)
    assert one.accepted


def test_a_job_can_be_without_drafts(start, new_job, finish):
    """Nothing is guessed for it."""
    draft = Guesser()
    engine, runner = start(draft)
    job = new_job([1], 4, draft_max=0)
    engine.submit(job)
    assert [2, 3, 4, 5] == ids(finish(job)[0])
    assert ([], 0) == (draft.asked, job.drafted)
    assert [1, 1, 1] == lengths(runner)


@pytest.mark.parametrize("error", [ZeroDivisionError("no luck"), CancelledError("no luck")])
def test_a_draft_that_fails_is_told_once(start, new_job, finish, caplog, error):
    """The answer goes on without it, also when somebody else was to be stopped."""
    draft = Guesser()

    def fail(tokens, n):
        raise error

    draft.propose = fail
    job, events, done, _ = answer(start, new_job, finish, draft)
    assert list(range(2, 22)) == ids(events)
    assert ("length", None, 0) == (done.reason, done.error, job.drafted)
    (record,) = caplog.records
    assert "goes on without drafts: no luck" in record.getMessage()


def test_a_draft_that_fails_is_an_error_when_fallbacks_are(start, new_job, finish):
    """`strict` refuses the slower way."""
    draft = Guesser()
    draft.propose = lambda tokens, n: 1 // 0
    engine, runner = start(draft)
    runner.settings = attrs.evolve(runner.settings, strict=True)
    job = new_job([1], 4, draft_max=15)
    engine.submit(job)
    assert ZeroDivisionError is type(finish(job)[1].error)


def test_cancelling_reaches_who_guesses(start, new_job, finish):
    """Its runner is stopped as the model's is; the sequence has no token too many."""
    engine, other = start()
    draft = Guesser(runners=(other,))

    def wait(tokens, n):
        other.step([(new_job([]).sequence, [1])], 1)
        raise AssertionError("it was not cancelled")

    draft.propose = wait
    engine, runner = start(draft)
    other.hold()
    job = new_job([1], 20, draft_max=15)
    engine.submit(job)
    other.wait_for(1)
    engine.cancel(job, 1)
    assert "cancelled" == finish(job)[1].reason
    assert ([1, 2], [1]) == (job.tokens, job.sequence.tokens)
    assert 1 == other.cancels == runner.cancels


def test_a_step_with_a_draft_that_fails_leaves_the_sequence(start, new_job, finish):
    """As any other step does."""
    engine, runner = start(Guesser(), ubatch=64)
    runner.bad_tokens.add(5)
    job = new_job([1], 20, draft_max=15)
    engine.submit(job)
    events, done = finish(job)
    assert ([2], "a bad token") == (ids(events), str(done.error))
    assert ([1, 2], [1]) == (job.tokens, job.sequence.tokens)


def test_logits_that_are_not_finite_inside_a_run(start, new_job, finish):
    """What was said before stays; the rest of the run is nobody's."""
    engine, runner = start(Guesser(), ubatch=64)
    runner.bad_logits.add(5)
    job = new_job([1], 20, draft_max=15)
    engine.submit(job)
    events, done = finish(job)
    assert [2, 3, 4, 5] == ids(events)
    assert isinstance(done.error, SamplingError)
    assert [1, 2, 3, 4] == job.sequence.tokens


def test_each_token_has_its_own_log_probabilities(start, new_job, finish):
    """Of its row, not of the step's last."""
    _, events, _, _ = answer(start, new_job, finish, Guesser(), logprobs=1)
    assert [[e.id] for e in events] == [[i for i, _ in e.logprobs] for e in events]


# real models: states, windows, positions


@attrs.define
class Partly:
    """Guesses a known text, right in some places and wrong in others."""

    text: list[int]
    runners: tuple = ()

    def propose(self, tokens, n):
        guess = self.text[len(tokens) :][:n]
        return [t if (len(tokens) + i) % 5 else 3 for i, t in enumerate(guess)]


def written(runner, new_job, finish, draft, **settings):
    """An answer of 40 tokens by a real runner."""
    engine, n_vocab = Engine(runner, draft), runner.definition.hparams.n_vocab
    prompt = [1, 10, 20, 30, 17, 10, 20, 30]
    sampler = Sampler(Settings(seed=7, **settings), n_vocab)
    job = new_job(prompt, 40, sampler=sampler, draft_max=15 if draft else 0)
    engine.submit(job)
    _, done = finish(job)
    assert ("length", None) == (done.reason, done.error)
    engine.close()
    assert job.sequence.tokens == job.tokens[: len(job.sequence)]
    runner.cache.close(job.sequence)
    slots = runner.cache.slots
    assert runner.cache.cells.free == len(runner.cache.cells) - 1 or not runner.cache.cells
    assert slots.free == len(slots) - slots.first or not slots
    return job


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("name", MODELS)
def test_no_architecture_tells_another_text(open_runner, new_job, finish, name, temperature):
    """Greedy, and drawn with a seed: drafts that are right, partly right and looked up."""
    runner = open_runner(name)
    given = {"temperature": temperature, "top_k": 5}
    plain = written(runner, new_job, finish, None, **given).tokens
    for draft in (Partly(plain), Lookup()):
        job = written(runner, new_job, finish, draft, **given)
        assert plain == job.tokens
        if isinstance(draft, Partly):
            assert 0 < job.accepted < job.drafted


def test_a_recurrent_state_goes_back_to_where_the_draft_began(
    open_runner, new_job, finish, monkeypatch
):
    """Only what was accepted is computed again, and in the same step as the next draft."""
    runner = open_runner("mamba")
    plain = written(runner, new_job, finish, None, temperature=0).tokens
    steps, step = [], runner.step

    def counted(batch, rows, **how):
        steps.append(len(batch[0][1]))
        return step(batch, rows, **how)

    monkeypatch.setattr(runner, "step", counted)
    job = written(runner, new_job, finish, Partly(plain), temperature=0)
    assert 8 == steps[0]
    assert 40 > len(steps)
    assert sum(steps[1:]) <= 40 + 2 * job.drafted


@pytest.mark.parametrize("name", ["mamba", "lfm2", "llama"])
def test_a_draft_with_neighbours_that_come_and_go(open_runner, new_job, finish, name):
    """A recurrent state that went back is made whole before a step is shared."""
    runner = open_runner(name, ctx=128, parallel=2)
    plain = written(runner, new_job, finish, None, temperature=0).tokens
    engine, n_vocab = Engine(runner, Partly(plain)), runner.definition.hparams.n_vocab
    jobs = []
    for n in (40, 3, 3, 3):
        sampler = Sampler(Settings(temperature=0), n_vocab)
        jobs.append(new_job(plain[:8], n, sampler=sampler, draft_max=15 * (n == 40)))
        jobs[-1].transient = True
    engine.submit(jobs[0])
    for job in jobs[1:]:
        while jobs[0].sampled < 6 * jobs.index(job) and not jobs[0].ended:
            time.sleep(0.0005)
        engine.submit(job)
    for job in jobs:
        events, _ = finish(job)
        assert plain[8 : 8 + job.max_tokens] == ids(events)
    engine.close()
