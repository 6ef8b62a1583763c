"""`umbel perplexity`: a line, JSON, the estimate so far on a terminal."""

from __future__ import annotations

import json
import re

import pytest
import umbel as package
from umbel.session import Session
from umbel.tools.perplexity import estimates

TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside. " * 12


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT + "\n")
    return str(path)


@pytest.fixture
def measured(story):
    """What the tool itself gives for the text."""

    def last(**settings):
        with package.load(story, device="host", ctx=64) as model:
            ids = model.tokenizer.encode(TEXT, eos=False)
            return list(estimates(model, ids, ctx=64, **settings))[-1]

    return last


def test_a_line(umbel, story, text, measured):
    """The figure goes to stdout, speed to stderr; stdin is another way in."""
    done = umbel("perplexity", story, text, "--ctx", "64")

    now = measured()
    told = f"{now.perplexity:.4f} +- {now.error:.4f}"
    assert done.code == 0
    assert done.out == f"perplexity {told}, of {now.tokens} tokens in {now.of} x 64\n"
    assert re.fullmatch(r"umbel: host:0: \d+ tokens, [\d.]+ s \([\d.]+ t/s\)\n", done.err)
    again = umbel("perplexity", story, "-", "--ctx", "64", stdin=TEXT + "\n")
    assert again.out == done.out


def test_json(umbel, story, text, measured):
    """All that is known, for scripts."""
    done = umbel("perplexity", story, text, "--ctx", "64", "--chunks", "2", "--all", "--json")

    found, now = json.loads(done.out), measured(chunks=2, every=True)
    assert found.pop("seconds") > 0
    assert found == {
        "perplexity": now.perplexity,
        "error": now.error,
        "tokens": 2 * 63,
        "chunks": 2,
        "ctx": 64,
        "all": True,
        "device": "host:0",
    }


def test_line_ends_count(umbel, story, tmp_path):
    """Of other systems too, and of a pipe like those of a file."""
    lines = TEXT.replace(". ", ".\r\n")
    (tmp_path / "crlf").write_bytes(lines.encode())
    piped = umbel("perplexity", story, "-", "--ctx", "64", stdin=lines + "\n").out
    assert piped == umbel("perplexity", story, str(tmp_path / "crlf"), "--ctx", "64").out
    assert piped != umbel("perplexity", story, "-", "--ctx", "64", stdin=TEXT).out


def test_chunks_of_512(umbel, story, text):
    """Without --ctx, as llama-perplexity has it."""
    assert (
        "of 255 tokens in 1 x 512\n"
        in umbel("perplexity", story, "-", "--chunks", "1", stdin=TEXT * 2).out
    )


def test_the_estimate_so_far(lines, story, text):
    """A terminal shows it on one line, with the time that is left."""
    shown = lines("perplexity", story, text, "--ctx", "64", "--chunks", "2", columns=60)
    estimates = [line for line in shown if re.match(r"umbel: \d/2", line)]
    assert re.match(r"umbel: 1/2  [\d.]+ \+- [\d.]+  \d+:\d\d left *$", estimates[0])
    assert {len(line) for line in estimates} == {59}


def test_ctrl_c(umbel, story, text, monkeypatch):
    """Exit code 130, no figure."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "logits", interrupted)

    done = umbel("perplexity", story, text, "--ctx", "64")

    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("{story}", "{folder}/none"), "No such file"),
        (("{story}", "{folder}"), "Is a directory"),
        (("{story}", "{text}"), "the text is too short for one chunk"),
        (("{story}", "{text}", "--ctx", "7"), "a whole number from 8 to 2147483647"),
        (("{story}", "{text}", "--ctx", "64", "--chunks", "0"), "where: --chunks"),
        (("{story}", "-"), "expected: at least 512 tokens"),
        (("{folder}/bert.gguf", "{text}"), "bert is an encoder"),
        (("{story}",), "required: FILE"),
    ],
)
def test_what_cannot_be(umbel, story, oracles, text, tmp_path, words, told):
    """One plain error and exit code 2."""
    folder = oracles if "bert" in words[0] else tmp_path
    given = (word.format(story=story, text=text, folder=folder) for word in words)
    if "short" in told:
        (tmp_path / "text").write_text("Once")

    done = umbel("perplexity", *given, stdin="")

    assert (done.code, done.out) == (2, "")
    assert told in done.err
