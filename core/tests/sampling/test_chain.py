"""The filters and their chain against a plain reference that sorts everything."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from umbel.sampling import Sampler, Settings, filters
from umbel.sampling.sampler import Choice

VOCAB = 300


def ranked(scores: dict[int, float]) -> list[int]:
    """The tokens, best first, the lowest id of equals first."""
    return sorted(scores, key=lambda t: (-scores[t], t))


def shares(scores: dict[int, float]) -> dict[int, float]:
    """The probabilities."""
    top = max(scores.values())
    weights = {t: math.exp(x - top) for t, x in scores.items()}
    total = math.fsum(weights.values())
    return {t: w / total for t, w in weights.items()}


def until(order: list[int], p: dict[int, float], mass: float) -> list[int]:
    """The shortest beginning of an order that holds so much probability."""
    total = 0.0
    for n, token in enumerate(order):
        total += p[token]
        if total >= mass:
            return order[: n + 1]
    return order


def plain_top_k(scores, k):
    return ranked(scores)[:k] if k > 0 else ranked(scores)


def plain_top_p(scores, mass):
    return until(ranked(scores), shares(scores), mass) if mass < 1 else ranked(scores)


def plain_min_p(scores, share):
    p = shares(scores)
    return [t for t in scores if p[t] >= share * max(p.values())]


def plain_typical(scores, mass):
    if mass >= 1:
        return ranked(scores)
    p = shares(scores)
    entropy = -math.fsum(x * math.log(x) for x in p.values())
    order = sorted(p, key=lambda t: (abs(-math.log(p[t]) - entropy), t))
    return until(order, p, mass)


def plain_xtc(scores, threshold):
    p = shares(scores)
    likely = [t for t in ranked(scores) if p[t] >= threshold]
    return [t for t in scores if t not in likely[:-1]]


def plain_cut(scores, bits):
    p = shares(scores)
    return [t for t in scores if -math.log2(p[t]) <= bits] or ranked(scores)[:1]


def plain_sample(logits: np.ndarray, s: Settings, chance: float) -> int:
    """The token of a chain, by the definitions, for one random number."""
    scores = {t: float(x) for t, x in enumerate(logits)}
    for name in s.samplers:
        keep = list(scores)
        if name == "temperature":
            scores = {t: x / s.temperature for t, x in scores.items()}
        elif name == "top_k":
            keep = plain_top_k(scores, s.top_k)
        elif name == "top_p":
            keep = plain_top_p(scores, s.top_p)
        elif name == "min_p":
            keep = plain_min_p(scores, s.min_p)
        elif name == "typ_p":
            keep = plain_typical(scores, s.typical)
        elif name == "xtc" and chance < s.xtc_probability:
            keep = plain_xtc(scores, s.xtc_threshold)
            chance = chance / s.xtc_probability
        elif name == "xtc":
            chance = (chance - s.xtc_probability) / (1 - s.xtc_probability)
        scores = {t: scores[t] for t in sorted(keep)}
    return plain_draw(scores, chance)


def plain_draw(scores: dict[int, float], chance: float) -> int:
    total = 0.0
    p = shares(scores)
    for token in sorted(p):
        total += p[token]
        if chance < total:
            return token
    return max(p)


def rows(count: int, *, grid: bool = False) -> list[np.ndarray]:
    """Logits of several sharpnesses; on a grid they are full of ties."""
    rng = np.random.default_rng(7)
    made = [rng.standard_normal(VOCAB) * rng.choice([0.5, 2, 5]) for _ in range(count)]
    return [(np.round(x * 2) / 2 if grid else x).astype(np.float32) for x in made]


FILTERS = [
    (filters.top_k, plain_top_k, [1, 2, 40, VOCAB - 1, VOCAB, 10**9]),
    (filters.top_p, plain_top_p, [0, 0.01, 0.5, 0.95, 0.999]),
    (filters.min_p, plain_min_p, [0.001, 0.05, 0.5, 1]),
    (filters.typical, plain_typical, [0, 0.2, 0.9, 0.99]),
    (filters.xtc, plain_xtc, [0, 0.01, 0.1, 0.3, 1]),
    (filters.surprise_cut, plain_cut, [-1, 0.5, 3, 7, 100]),
]


@pytest.mark.parametrize("grid", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(
    ("fast", "plain", "value"), [(f, p, v) for f, p, values in FILTERS for v in values]
)
def test_filter_is_its_definition(fast, plain, value, grid):
    """A filter keeps what sorting the whole vocabulary would keep, in the order of the ids."""
    for logits in rows(8, grid=grid):
        scores = logits.astype(np.float64)
        expected = sorted(plain(dict(enumerate(scores.tolist())), value))
        assert expected == fast(scores, value).tolist()


def test_top_p_reaches_exactly():
    """A nucleus that is reached exactly ends there."""
    scores = np.zeros(8)  # each of probability 1/8
    assert filters.top_p(scores, 0.5).tolist() == [0, 1, 2, 3]
    assert filters.top_p(scores, 0.5000001).tolist() == [0, 1, 2, 3, 4]


def test_top_p_does_not_sort_the_tail(monkeypatch):
    """Only what may belong to the nucleus is sorted, not the vocabulary."""
    sizes = []
    argsort = np.argsort
    monkeypatch.setattr(np, "argsort", lambda x, **kw: sizes.append(len(x)) or argsort(x, **kw))
    scores = np.full(50_000, -20.0)
    scores[[5, 70, 900]] = 3.0, 2.0, 1.0
    assert filters.top_p(scores, 0.9).tolist() == [5, 70]
    assert sizes == [3]


CHAINS = [
    {},
    {"top_k": 0},
    {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "typical": 1.0},
    {"top_k": 5, "temperature": 2.5},
    {"typical": 0.6, "top_k": 100},
    {"samplers": ("typ_p",), "typical": 0.8},
    {"samplers": ("temperature", "min_p", "top_p", "top_k"), "temperature": 1.7, "min_p": 0.01},
    {"samplers": ("min_p", "xtc", "top_k"), "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_p": 1.0, "min_p": 0.0},
    {"xtc_probability": 0.3, "xtc_threshold": 0.1, "temperature": 1.3},
    {"samplers": ()},
    {"samplers": ("temperature",), "temperature": 0.3},
]


@pytest.mark.parametrize("grid", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_chain_is_its_definition(chain, grid):
    """The sampler gives, token for token, what the definitions give for the seed's numbers."""
    settings = Settings(seed=99, **chain)
    sampler = Sampler(settings, VOCAB)
    chances = np.random.Generator(np.random.PCG64(99))
    for logits in rows(25, grid=grid):
        assert plain_sample(logits, settings, chances.random()) == sampler.sample(logits)


@pytest.mark.parametrize(
    ("chance", "position"), [(0.0, 1), (0.49, 1), (0.5, 3), (1 - 2**-53, 3)]
)
def test_draw_of_the_impossible(chance, position):
    """No random number falls on a candidate whose probability is too small for a float."""
    scores = np.array([-2000.0, 0.0, -2000.0, 0.0, -2000.0])
    assert position == Choice(np.arange(5), scores, [], chance).draw()


def test_order_counts():
    """Top-p before temperature keeps fewer tokens than top-p after a high temperature."""
    logits = np.array([4.0, 2.0, 1.0, 0.0], np.float32)
    orders = {("top_p", "temperature"): {0, 1}, ("temperature", "top_p"): {0, 1, 2, 3}}
    for samplers, expected in orders.items():
        settings = Settings(seed=5, samplers=samplers, top_p=0.9, temperature=8.0)
        sampler = Sampler(settings, 4)
        assert expected == {sampler.sample(logits) for _ in range(200)}


def test_sampler_not_named_does_not_work():
    """A setting whose sampler is not in the order has no effect."""
    settings = Settings(seed=5, samplers=("temperature",), top_k=1, temperature=50.0)
    sampler = Sampler(settings, 4)
    chosen = {sampler.sample(np.array([4.0, 2.0, 1.0, 0.0], np.float32)) for _ in range(200)}
    assert {0, 1, 2, 3} == chosen


EDGES = list(
    itertools.product([0, -1, 1, 10**9], [0, 0.5, 1], [0, 1], [0, 1], [0.0, 1.0], [0, 2])
)


@pytest.mark.parametrize(
    "samplers",
    [
        ("top_k", "dry", "min_p", "temperature", "top_p"),
        ("xtc", "temperature", "typ_p", "min_p", "top_p", "top_k"),
        ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    ],
)
def test_a_candidate_always_stays(samplers):
    """No combination of the extreme settings, in no order, leaves nothing to choose."""
    logits = np.array([1.0, 3.0, 3.0, -2.0, 0.0, -np.inf, 2.5, -30.0], np.float32)
    for top_k, top_p, min_p, typical, xtc, mirostat in EDGES:
        settings = Settings(
            seed=1,
            samplers=samplers,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical=typical,
            xtc_probability=xtc,
            xtc_threshold=0.0,
            dry_multiplier=5.0,
            mirostat=mirostat,
        )
        sampler = Sampler(settings, 8, prompt=[1, 2, 1, 2])
        chosen = {sampler.sample(logits) for _ in range(5)}
        assert chosen <= {0, 1, 2, 3, 4, 6, 7}


@pytest.mark.parametrize(("setting", "best"), [({"top_p": 0}, 1), ({"top_k": 1}, 1)])
def test_one_candidate(setting, best):
    """Top-p 0 and top-k 1 are the best token, of equals the lowest."""
    logits = np.array([1.0, 3.0, 3.0, -2.0], np.float32)
    for seed in range(20):
        assert best == Sampler(Settings(seed=seed, **setting), 4).sample(logits)
