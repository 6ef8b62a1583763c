"""`umbel bench`: the rows, not the speeds."""

from __future__ import annotations

import json

import pytest

KEYS = {
    "device": str,
    "threads": int,
    "test": str,
    "tps": float,
    "stddev": float,
    "sequences": int,
    "runs": int,
}


@pytest.fixture
def bench(umbel, story):
    return lambda *words: umbel("bench", story, "-p", "8", "-n", "4", "-r", "2", *words)


def test_table(bench):
    """A head, and a line for reading and for writing."""
    done = bench()

    head, pp, tg = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert head.split()[:6] == ["device", "threads", "test", "tps", "stddev", "first_token_ms"]
    assert pp.split()[::2][:2] == ["host:0", "pp8"]
    assert tg.split()[::2][:2] == ["host:0", "tg4"]
    assert len(pp.split()) == len(tg.split()) + 1 == 6


def test_json(bench):
    """A list with a mapping for each test, with these keys and types."""
    pp, tg = json.loads(bench("--json").out)

    for row in (pp, tg):
        assert {key: type(row[key]) for key in KEYS} == KEYS
        assert (row["device"], row["runs"]) == ("host:0", 2)
        assert row["tps"] > 0
        assert row["stddev"] >= 0
    assert (pp["test"], tg["test"]) == ("pp8", "tg4")
    assert pp["first_token_ms"] >= 1000 * 8 / (pp["tps"] + 4 * pp["stddev"]) * 0.5


def test_numbers_of_sequences(bench):
    """-b measures sequences together: reading, writing, both."""
    rows = json.loads(bench("--json", "-b", "1,3").out)[2:]

    assert [(r["test"], r["sequences"]) for r in rows] == [("pp8+tg4 x1", 1), ("pp8+tg4 x3", 3)]
    for row in rows:
        assert min(row["s_pp"], row["s_tg"]) <= row["tps"] <= max(row["s_pp"], row["s_tg"])
    assert "s_pp" in bench("-b", "1").out


def test_devices_and_threads(bench, toy):
    """Every device with every number of threads, one after the other."""
    rows = json.loads(bench("--json", "--device", "host,toy", "-t", "1,2", "-n", "0").out)

    assert [row["device"] for row in rows] == ["host:0", "host:0", "toy:0", "toy:0"]
    assert [row["threads"] for row in rows] == [1, 2, 1, 2]
    assert {"pp8"} == {row["test"] for row in rows}


def test_one_run_has_no_deviation(umbel, story):
    """-r 1 gives a mean, and a deviation of zero."""
    done = umbel("bench", story, "-p", "0", "-n", "2", "-r", "1", "--json")

    (row,) = json.loads(done.out)
    assert (row["test"], row["stddev"], row["runs"]) == ("tg2", 0.0, 1)


def test_recurrent_model(umbel, oracles):
    """A model whose state cannot be rewound is measured as well."""
    path = str(oracles / "mamba.gguf")

    done = umbel("bench", path, "-p", "5", "-n", "3", "-r", "2", "-b", "2", "--json")

    assert [row["test"] for row in json.loads(done.out)] == ["pp5", "tg3", "pp5+tg3 x2"]


def test_encoder(umbel, oracles):
    """An encoder is refused before anything runs."""
    done = umbel("bench", str(oracles / "bert.gguf"))

    assert (done.code, done.out) == (2, "")
    assert "bert is an encoder" in done.err


def test_drafts(umbel, story):
    """Two texts, without drafts and with them by turns: what was accepted, and the ratio."""
    done = umbel("bench", story, "-p", "0", "-n", "9", "-r", "2", "--draft", story, "--json")

    rows = json.loads(done.out)[1:]
    tests = ["tg9 copy", "tg9 copy drafts", "tg9 story", "tg9 story drafts"]
    assert tests == [row["test"] for row in rows]
    for plain, drafts in (rows[:2], rows[2:]):
        assert "drafted" not in plain
        assert (7, 7) == (drafts["accepted"], drafts["drafted"])
        assert drafts["ratio"] > 0
        assert {key: type(drafts[key]) for key in KEYS} == KEYS


def test_drafts_of_a_text_of_ones_own(umbel, story, tmp_path):
    """It stands in the place of the two; the columns are there."""
    file = tmp_path / "text"
    file.write_text("Tom and Tom and Tom and")
    words = ("-p", "0", "-n", "5", "-r", "1", "--text", str(file))
    done = umbel("bench", story, *words, "--draft", "lookup", "--draft-max", "3")

    head, _, plain, drafts = done.out.splitlines()
    assert head.split()[-3:] == ["accepted", "drafted", "ratio"]
    assert ["tg5 text", "tg5 text drafts"] == [
        " ".join(line.split()[2:end]) for line, end in ((plain, 4), (drafts, 5))
    ]
    refused = umbel("bench", story, *words)
    assert (2, True) == (refused.code, "where: --text" in refused.err)


def test_drafts_of_a_text_that_leaves_little_room(umbel, story, tmp_path):
    """The test is called by what is written; a text with room for one token has no speed."""
    file, words = tmp_path / "text", ("-p", "0", "-r", "1", "--text", str(tmp_path / "text"))
    for length, wanted in ((1775, "tg3 text"), (1790, "the text does not fit")):
        file.write_text(("Once upon a time there was a little girl. " * 50)[:length])
        done = umbel("bench", story, *words, "--draft", "lookup")
        assert wanted in " ".join((done.out + done.err).split())
