"""What guesses: a look at the text so far, or another model."""

from __future__ import annotations

import pytest
from umbel.draft import PADDING, DraftModel, Lookup, check_vocabulary
from umbel.errors import OptionError

TEXT = [1, 10, 20, 30, 17, 10, 20, 31]


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], 2, [5, 9]),  # the last time counts
        ([9, 1, 2, 3, 1, 2, 3], 7, [1, 2, 3, 1, 2, 3, 1]),  # on into itself
        ([7, 7, 7, 7], 3, [7, 7, 7]),
        ([1, 2, 3, 4, 5, 2, 3], 3, []),  # two tokens alike are too few
        ([1, 2, 3, 4, 5, 6], 3, []),
        ([7, 7, 7], 3, []),
        ([7], 3, []),
        ([], 3, []),
    ],
)
def test_lookup(tokens, n, expected):
    """What followed the last three tokens, the last time that they were there."""
    given = list(tokens)
    assert expected == Lookup().propose(given, n)
    assert tokens == given


def best(runner, tokens, n):
    """The best tokens one by one, each time from the start."""
    from umbel.state import Sequence

    made = list(tokens)
    for _ in range(n):
        sequence = Sequence()
        made.append(int(runner.forward(sequence, made).argmax()))
        runner.cache.close(sequence)
    return made[len(tokens) :]


@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2"])
def test_a_model_guesses_its_best_tokens(open_runner, name):
    """For a text that grows, is cut, changes, and is another one."""
    runner = open_runner(name)
    draft = DraftModel(runner, 1 << 20)
    for tokens in (TEXT, [*TEXT, 5, 6], TEXT[:4], [*TEXT[:3], 9, 9], [4], [4]):
        assert best(runner, tokens, 5) == draft.propose(tokens, 5)
    assert [best(runner, [4], 1)[0]] == draft.propose([4], 1)


def test_a_model_computes_no_token_twice(open_runner, monkeypatch):
    """Of a text that goes on as it guessed, only what is new."""
    runner = open_runner("llama")
    draft, steps, step = DraftModel(runner, 512), [], runner.step

    def counted(batch, rows, **how):
        steps.append(len(batch[0][1]))
        return step(batch, rows, **how)

    monkeypatch.setattr(runner, "step", counted)
    guess = draft.propose(TEXT, 3)
    draft.propose([*TEXT, *guess, 7], 2)
    assert [len(TEXT), 1, 1, 2, 1] == steps


def test_a_model_guesses_within_its_bounds(open_runner):
    """No more than its context holds, and no token that one of the two does not know."""
    runner = open_runner("llama", ctx=10)
    draft = DraftModel(runner, 512)
    assert 2 == len(draft.propose(TEXT, 5))
    assert [] == draft.propose([*TEXT, 1, 2], 5)
    assert [] == draft.propose([*TEXT, 1, 2, 3, 4], 5)
    assert [] == draft.propose([5, 512], 5)
    few = DraftModel(open_runner("llama"), 40)
    assert all(token < 40 for token in few.propose([1, 2, 3], 9))


def test_vocabularies():
    """Equal but for the first tokens and a few at the end; else both are shown."""
    words = [f"w{i}" for i in range(40)]
    check_vocabulary(words, words)
    check_vocabulary(words, ["<s>", *words[1:]])
    check_vocabulary(words, words + ["pad"] * PADDING)
    check_vocabulary(words + ["pad"] * PADDING, words)
    for other, expected, got in (
        ([*words[:7], "x", "y", *words[9:]], "token 7 is 'w7'", "'x'"),
        (words + ["pad"] * (PADDING + 1), "40 tokens", "169 tokens"),
    ):
        with pytest.raises(OptionError, match="another vocabulary") as caught:
            check_vocabulary(words, other)
        assert ("draft", expected, got) == (
            caught.value.where,
            caught.value.expected,
            caught.value.got,
        )
