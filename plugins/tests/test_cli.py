"""The command `umbel-kit`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from umbel import plugins
from umbel_kit import coverage
from umbel_kit.cli import main

COVERAGE = ["coverage", "--device", "host"]


@pytest.fixture(autouse=True)
def _plugins(monkeypatch):
    """A set of plugins of the test's own: what is opened here is nobody else's."""
    monkeypatch.setattr(plugins, "_process", plugins.Plugins(only=""))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page whose table is up to date."""
    file = tmp_path / "page.md"
    file.write_text(f"# Page\n\nText.\n\n{coverage.BEGIN}\nolder\n", "utf-8")
    assert main([*COVERAGE, "--write", str(file)]) == 0
    return file


def test_the_table(capsys):
    """On stdout, and nothing else there."""
    assert main(COVERAGE) == 0
    said = capsys.readouterr().out
    assert said.startswith(coverage.BEGIN)
    assert "| `add` | | yes |" in " ".join(said.split("\n")).replace("  ", " ")


def test_it_is_the_same_in_every_process():
    """Whatever the seed of hashes, so that a page is not stale by chance."""
    command = [sys.executable, "-c", "from umbel_kit.cli import main; main()", *COVERAGE]
    texts = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_a_page_is_renewed(page, capsys):
    """What stands before the table is kept; what is up to date passes."""
    text = page.read_text("utf-8")
    assert text.startswith(f"# Page\n\nText.\n\n{coverage.BEGIN}\n\n| operation |")
    assert "older" not in text
    assert main([*COVERAGE, "--check", str(page)]) == 0
    assert "is up to date" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["another answer", "a line less", "a line more"])
def test_a_stale_page(page, capsys, change):
    """It fails, shows where, says how to renew it, and changes nothing."""
    text = page.read_text("utf-8")
    stale = {
        "another answer": text.replace("| yes |", "| no |", 1),
        "a line less": text.replace("| `sub` |  | yes |\n", ""),
        "a line more": text + "more\n",
    }[change]
    assert stale != text
    page.write_text(stale, "utf-8")
    assert main([*COVERAGE, "--check", str(page)]) == 2
    said = capsys.readouterr().err
    assert "umbel-kit: error: the table of what runs where is stale" in said
    assert f"do: umbel-kit coverage --device host --write {page}" in said
    assert {
        "another answer": "expected: | `sqr` |  | yes |\n  got: | `sqr` |  | no |",
        "a line less": "expected: | `sub` |",
        "a line more": "expected: nothing\n  got: more",
    }[change] in said
    assert page.read_text("utf-8") == stale


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "nosuch"], "there is no device 'nosuch'"),
        (["--cases", "no_such_module"], "there are no cases in no_such_module"),
        (["--cases", "umbel_kit"], "there are no cases in umbel_kit"),
        (["--check", "nosuch.md"], "the page cannot be read"),
        (["--write", "nosuch.md"], "the page cannot be read"),
        (["--write", "plain.md"], "the page has no place for the table"),
        (["--check", "latin.md"], "the page cannot be read"),
    ],
)
def test_odd_arguments(tmp_path, monkeypatch, capsys, words, told):
    """One plain error each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.md").write_text("# Plain\n")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    assert main([*COVERAGE, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"umbel-kit: error: {told}")
    assert (tmp_path / "plain.md").read_text() == "# Plain\n"


def test_to_write_and_to_check_exclude_each_other(capsys):
    """argparse says so."""
    with pytest.raises(SystemExit):
        main([*COVERAGE, "--write", "a", "--check", "a"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_cases_of_ones_own(tmp_path, monkeypatch, capsys):
    """A module that the suite takes is taken here."""
    text = (
        "from umbel_kit.cases import Arg, Case\nCASES = [Case('reshape', (Arg((2,)),), {})]\n"
    )
    (tmp_path / "own_cases.py").write_text(text.replace("{}", "{'shape': (2, 1)}"))
    monkeypatch.syspath_prepend(tmp_path)
    assert main([*COVERAGE, "--cases", "own_cases"]) == 0
    assert "| `reshape` |  | yes |" in capsys.readouterr().out


def test_a_new_plugin(tmp_path, capsys):
    """It says what to do next."""
    assert main(["new", "npu", "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"pip install -e {tmp_path / 'plugin-npu'} && pytest" in said
    assert (tmp_path / "plugin-npu" / "pyproject.toml").is_file()


def test_a_plugin_that_cannot_be(tmp_path, capsys):
    """An error, and its exit code."""
    assert main(["new", "NPU", "--into", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "umbel-kit: error: a backend cannot be called like that\n  where: NAME"
    )
