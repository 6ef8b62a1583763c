"""Which samples count, and what is told of them."""

from collections import Counter

import figures
import pytest
from figures import Placements, Probe, Sample

NEAR, FAR = Probe(28.0, 35.0), Probe(165.0, 60.0)


def sample(engine="umbel", turn=0, seconds=1.0, before=NEAR, after=NEAR, foreign=0.0):
    return Sample(engine, turn, seconds, before, after, foreign)


def wobble(probe, n=10):
    """Probes of one placement are never quite alike."""
    shifts = [1 + 0.02 * (i - n / 2) for i in range(n)]
    return [Probe(probe.latency * s, probe.bandwidth / s) for s in shifts]


def test_one_placement():
    """What has no gap is one, however wide it is."""
    found = Placements.find([Probe(80.0 + i, 20.0 + 0.1 * i) for i in range(60)])

    assert [p.name for p in found.known.values()] == ["A"]
    assert found.of(Probe(90.0, 21.0)).probes == 60


def test_two_placements():
    """They are told apart by a gap, not by figures of one machine."""
    found = Placements.find([*wobble(NEAR), *wobble(FAR)])
    middles = {p.name: p.middle.latency for p in found.known.values()}

    assert middles == {"A": pytest.approx(28, rel=0.1), "B": pytest.approx(165, rel=0.1)}
    assert found.of(NEAR).name == "A"
    assert found.of(FAR).name == "B"


def test_placements_that_differ_in_bandwidth_alone():
    slow = [Probe(p.latency, p.bandwidth / 2) for p in wobble(NEAR)]

    assert len(Placements.find([*wobble(NEAR), *slow]).known) == 2


def test_a_rare_probe_is_no_placement():
    found = Placements.find([*wobble(NEAR, 30), Probe(4000.0, 3.0)])

    assert len(found.known) == 1
    assert found.of(Probe(4000.0, 3.0)) is None


def test_one_core():
    """Without a second core there is no latency."""
    found = Placements.find([Probe(0.0, 10.0), Probe(0.0, 11.0)])

    assert found.of(Probe(0.0, 10.5)).name == "A"


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (sample(), "A"),
        (sample(after=FAR), "flip"),
        (sample(before=FAR), "flip"),
        (sample(before=FAR, after=FAR), "B"),
        (sample(foreign=0.2), "load"),
    ],
)
def test_judge(taken, expected):
    found = Placements.find([*wobble(NEAR), *wobble(FAR)]).judge(taken)

    assert getattr(found, "name", found) == expected


def test_summarise():
    """Medians by placement; the ratio is of turns in which both count."""
    places = Placements.find([*wobble(NEAR), *wobble(FAR)])
    taken = [
        *(sample("umbel", turn, 1.0 + turn) for turn in range(3)),
        *(sample("llama.cpp", turn, 4.0 + 4 * turn) for turn in (0, 1)),
        sample("llama.cpp", 2, 99.0, after=FAR),
        sample("llama.cpp", 3, 99.0, foreign=0.5),
        sample("umbel", 4, 7.0, before=FAR, after=FAR),
    ]
    (near, far), dropped = figures.summarise(taken, places, "umbel", "llama.cpp")

    assert (near.placement.name, far.placement.name) == ("A", "B")
    assert near.seconds == {"umbel": 2.0, "llama.cpp": 6.0}
    assert (near.kept, near.ratio, near.turns) == ({"umbel": 3, "llama.cpp": 2}, 4.0, 2)
    assert (far.seconds, far.ratio, far.turns) == ({"umbel": 7.0}, None, 0)
    assert dropped == Counter(flip=1, load=1)


def test_nothing_counts():
    places = Placements.find(wobble(NEAR))

    told, dropped = figures.summarise([sample(foreign=1.0)], places, "umbel", "llama.cpp")

    assert (told, dropped) == ([], Counter(load=1))


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "-"), (0, "0"), (1234.5, "1234"), (45.67, "45.7"), (1.234, "1.23"), (0.1, "0.100")],
)
def test_number(value, told):
    assert figures.number(value) == told


def test_reasons():
    assert figures.reasons(Counter()) == "0"
    assert figures.reasons(Counter(load=1, flip=2)) == "3 (2 flip, 1 load)"


def test_table():
    assert figures.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
