"""Repetition penalties and DRY against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.sampling import Sampler, Settings, breaker_tokens, penalties

VOCAB = 6
IDS = np.arange(VOCAB)


def penalised(history, logits=(2.0, -2.0, 0.0, 1.0, 1.0, 1.0), ids=IDS, **setting):
    """The scores that a penalty over this history leaves."""
    scores = np.array(logits)
    penalties.repetition(ids, scores, history, Settings(**setting))
    return scores.tolist()


def dried(history, breakers=frozenset(), ids=IDS, **setting):
    """By how much DRY lowers each candidate."""
    scores = np.zeros(len(ids))
    asked = {"dry_multiplier": 1.0, "dry_base": 2.0, **setting}
    penalties.dry(ids, scores, history, Settings(**asked), breakers)
    return (-scores).tolist()


def plain_dry(history, breakers, s):
    """DRY by its definition: every earlier place, token by token backwards."""
    if s.dry_last_n >= 0:
        history = history[len(history) - min(s.dry_last_n, len(history)) :]
    lowered = [0.0] * VOCAB
    for place in range(1, len(history)):
        run = 0
        while run < place and history[place - 1 - run] == history[-1 - run]:
            if history[-1 - run] in breakers:
                break
            run += 1
        token, over = history[place], run - s.dry_allowed_length
        if run and over >= 0 and token not in breakers:
            lowered[token] = max(lowered[token], s.dry_multiplier * s.dry_base**over)
    return lowered


def test_repeat_penalty():
    """A positive score is divided, a negative multiplied, once however often it came."""
    assert penalised([0, 0, 1, 2], repeat_penalty=2.0) == [1.0, -4.0, 0.0, 1.0, 1.0, 1.0]


def test_frequency_and_presence():
    """Frequency counts each time, presence once."""
    expected = [2.0 - 2 * 0.5 - 0.25, -2.0 - 0.5 - 0.25, 0.0, 1.0, 1.0, 1.0]
    assert expected == penalised([0, 1, 0], frequency_penalty=0.5, presence_penalty=0.25)


@pytest.mark.parametrize(
    ("last_n", "hit"),
    [(1, {3}), (2, {2, 3}), (3, {1, 2, 3}), (64, {0, 1, 2, 3}), (-1, {0, 1, 2, 3})],
)
def test_penalty_window(last_n, hit):
    """Only the newest tokens count, all of them for -1."""
    scores = penalised([0, 1, 2, 3], (0.0,) * 6, presence_penalty=1.0, penalty_last_n=last_n)
    assert hit == {t for t, score in enumerate(scores) if score}


def test_penalties_on_a_narrowed_choice():
    """Tokens of the history that are no candidates any more are passed over."""
    ids = np.array([1, 4])
    assert penalised([0, 1, 5], (0.0, 0.0), ids, presence_penalty=1.0) == [-1.0, 0.0]
    assert dried([2, 3, 4, 2, 3], ids=ids) == [0.0, 1.0]


def test_penalties_without_history():
    """Nothing said is nothing to lower."""
    assert penalised([], (0.0,) * 6, presence_penalty=1.0) == [0.0] * 6
    assert dried([]) == [0.0] * 6
    assert dried([1]) == [0.0] * 6


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], {}),  # what followed is no candidate
        ([1, 2, 3, 4, 1, 2, 3], {4: 2.0}),
        ([2, 3, 4, 1, 2, 3], {4: 1.0}),
        ([3, 4, 1, 2, 3], {}),  # a run of one is allowed
        ([1, 1, 1, 1], {1: 2.0}),
        ([1, 2, 4, 3, 2, 4, 1, 2], {4: 1.0}),  # the longest of the runs counts
        ([2, 3, 4, 1, 2, 3, 5, 1, 2, 3], {4: 1.0, 5: 2.0}),
    ],
)
def test_dry(history, expected):
    """The penalty doubles with each token of a run beyond the allowed two."""
    assert [expected.get(t, 0.0) for t in range(VOCAB)] == dried(history)


def test_dry_breakers():
    """A run does not reach across a breaker, and a breaker may follow a run."""
    history = [1, 2, 3, 4, 1, 2, 3]
    assert dried(history)[4] == 2.0
    assert dried(history, breakers={1})[4] == 1.0
    assert dried(history, breakers={2})[4] == 0.0
    assert dried(history, breakers={3})[4] == 0.0
    assert dried(history, breakers={4})[4] == 0.0


def test_dry_window():
    """What lies before the window is forgotten."""
    history = [2, 3, 4, 1, 2, 3]
    assert [dried(history, dry_last_n=n)[4] for n in (6, 5, 0)] == [1.0, 0.0, 0.0]


@settings(max_examples=300, deadline=None)
@given(
    history=st.lists(st.integers(0, 3), max_size=40),
    breakers=st.sets(st.integers(0, 5), max_size=2),
    allowed=st.integers(0, 4),
    last_n=st.integers(-1, 12),
)
def test_dry_is_its_definition(history, breakers, allowed, last_n):
    """The vectorised search finds what a plain one finds."""
    s = Settings(
        dry_multiplier=0.5, dry_base=3.0, dry_allowed_length=allowed, dry_last_n=last_n
    )
    scores = np.zeros(VOCAB)
    penalties.dry(IDS, scores, history, s, breakers)
    assert plain_dry(history, breakers, s) == (-scores).tolist()


@pytest.mark.parametrize("base", [1, 1.75, 100])
def test_dry_endless_run(base):
    """A token said ten thousand times gives a finite penalty, huge if it grows."""
    (penalty,) = {dried([1] * 10_000, dry_base=base, dry_multiplier=1e9)[1]}
    assert np.isfinite(penalty)
    assert (penalty == 1e9) is (base == 1)


def test_dry_in_the_chain():
    """The sampler looks back over prompt and answer, up to the breakers it was given."""
    logits = np.zeros(VOCAB, np.float32)
    logits[4] = 1.0
    asked = Settings(temperature=0, dry_multiplier=5.0)
    prompt = [1, 2, 3, 4, 1, 2, 3]
    assert Sampler(asked, VOCAB, prompt=prompt).sample(logits) == 0
    assert Sampler(asked, VOCAB, prompt=prompt, breakers={3}).sample(logits) == 4


def test_breaker_tokens():
    """The tokens whose text holds a breaker are the breakers."""
    pieces = ["a", "\n", " b:", "c\n\n", "", '"']
    assert {1, 2, 3, 5} == breaker_tokens(Settings().dry_breakers, pieces)
    assert frozenset() == breaker_tokens((), pieces)
