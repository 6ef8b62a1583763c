"""`umbel embed`: where texts come from, and what becomes of their vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import umbel as package

TEXTS = ("the lord", "what say you")


@pytest.fixture
def bert(oracles):
    return str(oracles / "bert.gguf")


@pytest.fixture
def expected(bert):
    """What Python gives for the texts, with these settings."""

    def embedded(**settings):
        with package.load(bert, device="host") as model:
            return model.embed(TEXTS, **settings)

    return embedded


def read(done):
    """The vectors in lines of JSON, and all else that these say."""
    assert (done.code, done.err.count("\n")) == (0, 1)
    lines = [json.loads(line) for line in done.out.splitlines()]
    vectors = np.array([line.pop("embedding") for line in lines], np.float32)
    return vectors, lines


def test_a_table(umbel, bert):
    """A line for each text, the cosines of several; figures are on stderr."""
    done = umbel("embed", bert, *TEXTS, TEXTS[0])

    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head == ["text", "tokens", "vector"]
    assert [row[0] for row in rows[:3]] == ["1", "2", "3"]
    assert rows[0][1:] == rows[2][1:]
    assert rows[0][-2:] == ["(64", "values)"]
    assert rows[4] == ["cosine", "1", "2", "3"]
    assert rows[5][0] == "1"
    assert rows[5][1] == rows[5][3] == "1.00" != rows[5][2]
    assert "umbel: host:0: 3 texts, " in done.err


def test_one_text_and_many(umbel, bert):
    """Cosines are for two to ten."""
    assert "cosine" not in umbel("embed", bert, "I").out
    assert "cosine" in umbel("embed", bert, *"abcdefghij").out
    assert "cosine" not in umbel("embed", bert, *"abcdefghijk").out


def test_json(umbel, bert, expected):
    """The vectors as Python has them, to the last bit, with the texts and their tokens."""
    vectors, facts = read(umbel("embed", bert, *TEXTS, "--json"))

    assert np.array_equal(expected(), vectors)
    assert [fact["text"] for fact in facts] == list(TEXTS)
    assert all(fact["tokens"] > 2 for fact in facts)


def test_options(umbel, bert, expected):
    """--pooling and --no-normalize, before and after the texts."""
    words = ("--pooling", "cls", bert, TEXTS[0], "--no-normalize", TEXTS[1], "--json")

    assert np.array_equal(
        expected(pooling="cls", normalize=False), read(umbel("embed", *words))[0]
    )


def test_lines(umbel, bert, expected, tmp_path):
    """Of a file and of stdin; an empty line is a text as well."""
    path = tmp_path / "texts"
    path.write_bytes(f"{TEXTS[0]}\r\n{TEXTS[1]}\n".encode())
    lines = f"{TEXTS[0]}\n{TEXTS[1]}\n"

    for done in (
        umbel("embed", bert, "--file", str(path), "--json"),
        umbel("embed", bert, "--file", "-", "--json", stdin=lines),
        umbel("embed", bert, "-", "--json", stdin=lines),
        umbel("embed", bert, "--json", stdin=lines),
    ):
        assert np.array_equal(expected(), read(done)[0])
    assert [2, 3, 2] == [
        fact["tokens"] for fact in read(umbel("embed", bert, "--json", stdin="\nI\n\n"))[1]
    ]


def test_a_file_for_numpy(umbel, bert, expected, tmp_path):
    """--out writes the vectors, and nothing goes to stdout."""
    path = tmp_path / "vectors.bin"

    done = umbel("embed", bert, *TEXTS, "--out", str(path))

    assert (done.code, done.out) == (0, "")
    assert np.array_equal(expected(), np.load(path))
    assert [path] == list(tmp_path.iterdir())


def test_each_token(umbel, bert, tmp_path):
    """--pooling none: a vector for each token, and in a file one text after the other."""
    path = tmp_path / "vectors.npy"

    done = umbel(
        "embed", bert, *TEXTS, "--pooling", "none", "--json", "-o", str(path), "--no-normalize"
    )

    lines = [json.loads(line) for line in done.out.splitlines()]
    with package.load(bert, device="host") as model:
        states = [model.hidden(text) for text in TEXTS]
    for line, array in zip(lines, states, strict=True):
        assert np.array_equal(array, np.array(line["embedding"], np.float32))
    assert np.array_equal(np.concatenate(states), np.load(path))
    shown = umbel("embed", bert, *TEXTS, "--pooling", "none").out.splitlines()
    assert len(shown) == 1 + len(np.concatenate(states))


def test_too_long(umbel, bert, story):
    """An error that names the text; with --truncate it is cut, and a line says so."""
    long = "lord " * 200

    for pooling in ("last", "none"):
        done = umbel("embed", bert, "I", long, "--pooling", pooling)
        assert (done.code, done.out) == (2, "")
        assert "where: text 2" in done.err

    done = umbel("embed", bert, "I", long, "--truncate", "--json")
    tokens = [json.loads(line)["tokens"] for line in done.out.splitlines()]
    assert [3, 128] == tokens
    assert "umbel: note: cut to 128 tokens: text 2\n" in done.err
    same = [umbel("embed", bert, "lord " * n, "--truncate", "--json") for n in (126, 200)]
    assert np.array_equal(*(json.loads(done.out)["embedding"] for done in same))
    done = umbel("embed", story, *["word " * 99] * 7, "--ctx", "9", "--truncate")
    assert "cut to 9 tokens: text 1, 2, 3, 4, 5 ...\n" in done.err


def test_another_kind_of_file_stays(umbel, story, tmp_path):
    """Only vectors are replaced by vectors: a model named for --out is not lost."""
    other, vectors = tmp_path / "model.gguf", tmp_path / "vectors.npy"
    other.write_bytes(b"GGUF")
    done = umbel("embed", story, "I", "--out", str(other))

    assert (done.code, done.out, other.read_bytes()) == (2, "", b"GGUF")
    assert "this is another kind of file, and stays as it is" in done.err
    for text in ("I", "You"):
        assert umbel("embed", story, text, "--out", str(vectors)).code == 0


def test_one_token(umbel, story):
    """It is not called tokens."""
    assert "umbel: host:0: 1 text, 1 token, " in umbel("embed", story, "").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("I", "--file", "x"), "the texts are there twice"),
        (("--file", "{}/none"), "No such file"),
        (("--file", "{}"), "Is a directory"),
        (("--file", "{}/empty"), "there are no texts"),
        (("I", "--out", "{}/none/x.npy"), "cannot be written"),
        (("I", "--out", "{}"), "cannot be written"),
        (("I", "--pooling", "rank"), "invalid choice"),
        (("-",), "there are no texts"),
        ((), "there are no texts"),
    ],
)
def test_what_cannot_be(umbel, bert, tmp_path, words, told):
    """One plain error, exit code 2, nothing written."""
    (tmp_path / "empty").touch()

    done = umbel("embed", bert, *(word.format(tmp_path) for word in words), stdin="")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")
    assert told in done.err
    assert [tmp_path / "empty"] == list(tmp_path.iterdir())


def test_values_that_are_not_finite(umbel, bert, monkeypatch):
    """They are no embedding, and no JSON."""
    nan = np.full((2, 64), np.nan, np.float32)
    monkeypatch.setattr(package.Model, "embed", lambda *_, **__: nan)

    done = umbel("embed", bert, *TEXTS, "--json")

    assert (done.code, done.out) == (2, "")
    assert "where: text 1" in done.err


def test_ctrl_c(umbel, bert, monkeypatch):
    """Exit code 130, and no half of an output."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(package.Model, "embed", interrupted)

    done = umbel("embed", bert, *TEXTS)

    assert (done.code, done.out, done.err) == (130, "", "")
