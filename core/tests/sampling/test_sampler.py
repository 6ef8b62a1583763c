"""The sampler: seeds, greedy, degenerate logits, history, log probabilities."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from umbel.errors import SamplingError
from umbel.sampling import Sampler, Settings

INF = float("inf")
ROW = np.array([11.06, 2.9, -4.0], np.float32)


def logits(n: int = 50, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def text(sampler: Sampler, count: int = 30) -> list[int]:
    return [sampler.sample(logits(50, seed)) for seed in range(count)]


def test_pinned():
    """The tokens of a seed are the same in every version: saved conversations depend on it."""
    row = (4 * np.sin(np.arange(100) * 1.7)).astype(np.float32)
    sampler = Sampler(Settings(seed=42, temperature=1.5), 100)
    expected = [75, 42, 86, 71, 8, 97, 75, 78, 12, 45, 38, 93]
    assert expected == [sampler.sample(row) for _ in range(12)]


@pytest.mark.parametrize("setting", [{}, {"mirostat": 2}, {"xtc_probability": 0.5}], ids=str)
def test_seed_decides(setting):
    """One seed gives one text whatever else draws numbers; another seed gives another."""
    settings = Settings(seed=42, temperature=1.5, **setting)
    alone = text(Sampler(settings, 50))
    one, other = (
        Sampler(settings, 50),
        Sampler(Settings(seed=43, temperature=1.5, **setting), 50),
    )
    mixed: list[list[int]] = [[], []]
    for seed in range(30):
        np.random.random()
        mixed[0].append(one.sample(logits(50, seed)))
        mixed[1].append(other.sample(logits(50, seed)))
    assert alone == mixed[0]
    assert alone != mixed[1]


def test_missing_seed_is_drawn_and_told():
    """Without a seed two samplers differ, and the seed they tell repeats their text."""
    one, two = Sampler(Settings(), 50), Sampler(Settings(), 50)
    assert one.seed != two.seed
    assert text(one) == text(Sampler(Settings(seed=one.seed), 50))


@pytest.mark.parametrize(
    "setting",
    [{}, {"top_k": 1}, {"xtc_probability": 0.5, "xtc_threshold": 0.01}, {"mirostat": 2}],
    ids=str,
)
def test_one_draw_for_a_token(setting):
    """The n-th token takes the n-th number of the seed, whatever the logits before were."""
    sampler = Sampler(Settings(seed=3, **setting), 50)
    text(sampler, 10)
    expected = np.random.Generator(np.random.PCG64(3))
    expected.random(10)
    assert expected.bit_generator.state == sampler._random.bit_generator.state


def test_greedy_draws_nothing():
    """Greedy sampling leaves the generator alone."""
    sampler = Sampler(Settings(seed=3, temperature=0, repeat_penalty=1.1), 50)
    before = sampler._random.bit_generator.state
    text(sampler, 10)
    assert before == sampler._random.bit_generator.state


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-10, 1e-5, 1e-3])
def test_tiny_temperature_is_argmax(temperature, dtype):
    """Near zero the best token comes out, with no overflow on the way."""
    for seed in range(20):
        sampler = Sampler(Settings(seed=seed, temperature=temperature), 3)
        assert sampler.sample(ROW.astype(dtype)) == 0


def test_greedy_ties():
    """Of equal logits greedy takes the lowest id, also behind a bias."""
    row = np.array([1.0, 5.0, 5.0, 5.0], np.float32)
    assert Sampler(Settings(temperature=0), 4).sample(row) == 1
    assert Sampler(Settings(temperature=0, logit_bias={1: -INF}), 4).sample(row) == 2


def test_greedy_ignores_filters():
    """XTC and Mirostat do not move a greedy choice."""
    asked = Settings(temperature=0, xtc_probability=1.0, xtc_threshold=0.0, mirostat=2)
    assert Sampler(asked, 3).sample(ROW) == 0


@pytest.mark.parametrize("setting", [{"temperature": 0}, {}, {"mirostat": 2}], ids=str)
@pytest.mark.parametrize(
    "row",
    [
        [-INF] * 4,
        [0.0, 1.0, math.nan, 2.0],
        [math.nan] * 4,
        [INF, 1.0, INF, 0.0],
        [INF, 0, 0, 0],
    ],
    ids=str,
)
def test_degenerate_logits(row, setting):
    """Logits that name no token are an error, after which the sampler goes on as before."""
    settings = Settings(seed=8, presence_penalty=1.0, **setting)
    good = logits(4)
    expected = [Sampler(settings, 4).sample(good)]
    sampler = Sampler(settings, 4)
    with pytest.raises(SamplingError, match="no token to choose") as caught:
        sampler.sample(np.array(row, np.float32))
    assert caught.value.where == "logits"
    assert expected == [sampler.sample(good)]


def test_forbidden_logits_are_never_chosen():
    """Tokens at -inf stay out, and the rest is drawn as if they did not exist."""
    row = np.array([-INF, 1.0, -INF, 0.5], np.float32)
    sampler = Sampler(Settings(seed=1, samplers=()), 4)
    assert {1, 3} == {sampler.sample(row) for _ in range(100)}


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_bias_of_all(temperature):
    """Lowering every token alike changes nothing; forbidding every token is an error."""
    asked = {"temperature": temperature, "seed": 5}
    lowered = Settings(**asked, logit_bias=dict.fromkeys(range(50), -100))
    assert text(Sampler(Settings(**asked), 50)) == text(Sampler(lowered, 50))
    none = Settings(**asked, logit_bias=dict.fromkeys(range(50), -INF))
    with pytest.raises(SamplingError, match=r"no token to choose.*logit_bias forbids all"):
        Sampler(none, 50).sample(logits())


def test_bias_moves_the_choice():
    """A bias is added before all else."""
    assert Sampler(Settings(temperature=0, logit_bias={2: 20, 1: 5}), 3).sample(ROW) == 2
    assert Sampler(Settings(seed=1, top_k=1, logit_bias={2: 20, 1: 5}), 3).sample(ROW) == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logits_are_left_alone(dtype):
    """No setting changes the array it was given."""
    row = logits().astype(dtype)
    row.setflags(write=False)
    asked = Settings(
        seed=1, repeat_penalty=1.5, dry_multiplier=1.0, logit_bias={3: 1.0}, mirostat=2
    )
    before = row.tolist()
    Sampler(asked, 50, prompt=[1, 2, 1]).sample(row)
    Sampler(asked, 50).logprobs(row, 5, 0)
    assert before == row.tolist()


def test_history_counts():
    """Prompt and sampled tokens both count for the penalties."""
    asked = Settings(temperature=0, presence_penalty=100.0)
    assert [Sampler(asked, 3, prompt=p).sample(ROW) for p in ([], [0], [0, 1])] == [0, 1, 2]
    sampler = Sampler(asked, 3, prompt=[1])
    assert [sampler.sample(ROW), sampler.sample(ROW)] == [0, 2]


@pytest.mark.parametrize("last_n", [0, 1, 2, -1])
def test_penalty_window_moves(last_n):
    """A token comes back when it has left the window."""
    asked = Settings(temperature=0, presence_penalty=100.0, penalty_last_n=last_n)
    sampler = Sampler(asked, 4)
    row = np.array([4.0, 3.0, 2.0, 1.0], np.float32)
    expected = {0: [0, 0, 0, 0], 1: [0, 1, 0, 1], 2: [0, 1, 2, 0], -1: [0, 1, 2, 3]}
    assert expected[last_n] == [sampler.sample(row) for _ in range(4)]


@pytest.mark.parametrize("setting", [{}, {"mirostat": 2}], ids=str)
def test_deep_copy_goes_on_alone(setting):
    """A copy gives the text that the original would, and neither disturbs the other."""
    sampler = Sampler(Settings(seed=6, presence_penalty=0.5, **setting), 50)
    text(sampler, 5)
    fork = copy.deepcopy(sampler)
    assert text(sampler) == text(fork)


@pytest.mark.parametrize("token", [-1, 3, 2**31])
def test_bias_out_of_vocabulary(token):
    """A bias for a token that this vocabulary does not have is refused."""
    with pytest.raises(SamplingError, match="not in the vocabulary") as caught:
        Sampler(Settings(logit_bias={0: 1.0, token: 1.0}), 3)
    assert caught.value.where == "logit_bias"
    assert token == caught.value.got


def test_shares_of_the_draws():
    """The tokens come as often as their probabilities say."""
    row = np.log(np.array([0.5, 0.25, 0.15, 0.1])).astype(np.float32)
    sampler = Sampler(Settings(seed=11, samplers=()), 4)
    counts = np.bincount([sampler.sample(row) for _ in range(20_000)], minlength=4)
    assert pytest.approx((counts / 20_000).tolist(), abs=0.01) == [0.5, 0.25, 0.15, 0.1]


def test_shares_with_xtc():
    """XTC excludes in its share of the steps, and the draws inside both shares stay fair."""
    row = np.log(np.array([0.5, 0.25, 0.15, 0.1])).astype(np.float32)
    asked = Settings(seed=11, samplers=("xtc",), xtc_probability=0.4, xtc_threshold=0.2)
    sampler = Sampler(asked, 4)
    counts = np.bincount([sampler.sample(row) for _ in range(20_000)], minlength=4)
    kept = np.array([0.0, 0.25, 0.15, 0.1]) / 0.5  # without the best, the last above 0.2 stays
    expected = 0.6 * np.array([0.5, 0.25, 0.15, 0.1]) + 0.4 * kept
    assert expected.tolist() == pytest.approx((counts / 20_000).tolist(), abs=0.01)


@pytest.mark.parametrize("tau", [1.0, 3.0, 5.0])
def test_mirostat_comes_to_tau(tau):
    """The surprise of the chosen tokens comes to tau bits in the mean, whatever top-k says."""
    rows = [logits(2000, seed, 1.5) for seed in range(20)]
    sampler = Sampler(
        Settings(seed=1, mirostat=2, mirostat_tau=tau, top_k=1, temperature=1), 2000
    )
    limits = []
    for step in range(600):
        sampler.sample(rows[step % 20])
        limits.append(sampler._most_surprise)
    moved = (limits[0] - limits[-1]) / (len(limits) - 1) / 0.1
    assert abs(moved) < 0.1  # the limit has settled: the mean error is small
    assert len(set(limits)) > 100


def test_mirostat_by_hand():
    """The limit starts at twice tau and moves by eta times the error in bits."""
    row = np.log2(np.array([0.5, 0.25, 0.125, 0.125])) * math.log(2)
    asked = Settings(
        seed=0, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5, samplers=("temperature",),
        temperature=1.0,
    )  # fmt: skip
    sampler = Sampler(asked, 4)
    token = sampler.sample(row + np.array([0.0, 1e-9, 0.0, 0.0]))  # 0 and 1 are within 2 bits
    surprise = -math.log2([2 / 3, 1 / 3][token])
    assert 2.0 - 0.5 * (surprise - 1.0) == pytest.approx(sampler._most_surprise, abs=1e-6)


def test_mirostat_keeps_penalties():
    """Penalties work before Mirostat."""
    asked = Settings(seed=0, mirostat=2, presence_penalty=1000.0)
    sampler = Sampler(asked, 3)
    assert {0, 1, 2} == {sampler.sample(ROW) for _ in range(3)}


def test_logprobs():
    """The best tokens with the logarithms of their probabilities, of the logits as they are."""
    row = np.log(np.array([0.1, 0.6, 0.1, 0.2])).astype(np.float32)
    sampler = Sampler(Settings(temperature=0, logit_bias={0: 100.0}), 4)
    every = sampler.logprobs(row, 4, chosen=1)
    assert [token for token, _ in every] == [1, 3, 0, 2]
    assert np.log([0.6, 0.2, 0.1, 0.1]).tolist() == pytest.approx([p for _, p in every])
    assert every[:1] == sampler.logprobs(row, 0, chosen=1)
    assert [every[0], every[3]] == sampler.logprobs(row, 1, chosen=2)
    assert every[:2] == sampler.logprobs(row, 2, chosen=1)


def test_logprobs_of_large_logits():
    """Logits at the ends of float32 give numbers, an impossible token -inf."""
    row = np.array([3e38, -3e38, -INF], np.float32)
    actual = [p for _, p in Sampler(Settings(), 3).logprobs(row, 3, chosen=0)]
    assert pytest.approx(actual, rel=1e-6) == [0.0, -6e38, -INF]


def test_extreme_settings_stay_finite():
    """Settings at the ends of their ranges with logits at the ends of float32 give a token."""
    asked = Settings(
        seed=1,
        temperature=1e-6,
        repeat_penalty=1e6,
        frequency_penalty=1e9,
        presence_penalty=1e9,
        dry_multiplier=1e9,
        dry_base=100,
        logit_bias={0: 1e9, 1: -1e9, 2: -INF},
        samplers=("temperature", "penalties", "dry", "typ_p", "top_p", "min_p"),
        typical=0.5,
    )
    sampler = Sampler(asked, 4, prompt=[0, 1] * 500)
    for row in ([3e38, -3e38, 0, 1], [-3e38, -3e38, 3e38, -3e38], [0, 0, 0, 0]):
        assert sampler.sample(np.array(row, np.float32)) in (0, 1, 3)
