"""`--json-schema`, `--regex` and `--grammar` of `umbel run` and `umbel chat`."""

from __future__ import annotations

import json
import re
import sys

import pytest
from umbel.extras import locate

ONCE = "Once upon a time"
SCHEMA = '{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}'
CLOSED = json.dumps(json.loads(SCHEMA) | {"additionalProperties": False})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(CLOSED)
    (tmp_path / "list.gbnf").write_text('root ::= ("- " [a-z]{1,3} "\\n"){2}\n')
    (tmp_path / "word.lark").write_text("start: /[a-z]{3}/\n")
    return tmp_path


@pytest.mark.parametrize("given", [CLOSED, f"  {CLOSED}\n", "schema.json"])
def test_a_schema_or_its_file(umbel, story, folder, given):
    """The answer alone is on stdout."""
    done = umbel("run", story, ONCE, "--json-schema", given, "--seed", "1", "-n", "90")
    assert done.code == 0
    assert json.loads(done.out)["n"] in (1, 2)
    assert ", stop, seed 1" in done.err


def test_any_object(umbel, story):
    """`true` is any object; an answer that is cut is no JSON, and a note says so."""
    done = umbel("run", story, ONCE, "--json-schema", "true", "--seed", "1", "-n", "2")
    assert done.out.startswith("{")
    note, figures = done.err.splitlines()
    assert note == "umbel: note: the answer was cut: it is only the beginning of one that obeys"
    assert figures.endswith(", length, seed 1")
    assert "note" not in umbel("run", story, ONCE, "-n", "2").err


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["--regex", "yes|no"], "(yes|no)\n"),
        (["--grammar", "list.gbnf"], r"(- [a-z]{1,3}\n){2}"),
        (["--grammar", "word.lark"], r"[a-z]{3}\n"),
    ],
)
def test_regex_and_grammar(umbel, story, folder, words, pattern):
    """All of the answer matches."""
    done = umbel("run", story, ONCE, *words, "--seed", "1")
    assert done.code == 0
    assert re.fullmatch(pattern, done.out)


def test_chat(umbel, story, template):
    """Each answer of a conversation."""
    words = ("chat", story, "--chat-template", template, "--regex", "yes|no", "--seed", "1")
    done = umbel(*words, stdin="Is it?\nAnd now?\n")
    assert done.code == 0
    assert re.fullmatch("((yes|no)\n){2}", done.out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--json-schema", "{"], "--json-schema"),
        (["--json-schema", "[1]"], "--json-schema"),
        (["--json-schema", ""], "--json-schema"),
        (["--json-schema", "nowhere.json"], "--json-schema"),
        (["--json-schema", "list.gbnf"], "--json-schema"),
        (["--json-schema", '{"not": {}}'], "not"),
        (["--regex", "a["], "--regex"),
        (["--regex", "a", "--json-schema", "true"], "--regex"),
        (["--grammar", "nowhere.gbnf"], "--grammar"),
        (["--grammar", "schema.json"], "--grammar"),
        (["--grammar", "."], "--grammar"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_what_cannot_be_obeyed(umbel, folder, command, words, told, monkeypatch):
    """A plain error that names the option, before the model is opened."""
    monkeypatch.setattr(locate, "find_model", lambda name: folder / "never-opened.gguf")
    done = umbel(command, "MODEL", *words, stdin="")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")
    assert told in done.err
    assert "never-opened" not in done.err


def test_without_the_extra(umbel, story, monkeypatch):
    """One error with the pip line."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    done = umbel("run", story, ONCE, "--regex", "not asked for in another test")
    assert (done.code, done.out) == (2, "")
    assert "do: pip install 'umbel-core[grammar]'" in done.err
