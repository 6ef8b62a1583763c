"""What the commands share."""

from __future__ import annotations

import io
import signal
import sys
import threading

import pytest
from umbel.cli import common


class Screen(io.StringIO):
    """A terminal that remembers, and tells when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.came.set()
        return super().write(text)


def test_long_wait_is_told(monkeypatch):
    """A terminal is told what takes so long."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setattr(common, "PATIENCE", 0.01)

    with common.waiting("loading x.gguf"):
        assert screen.came.wait(10)

    assert screen.getvalue().startswith("umbel: loading x.gguf ...")


class Answer:
    """An answer during which Ctrl-C is pressed, and again while it is being stopped."""

    text, finish_reason = "so far", None

    def __iter__(self):
        yield self.text
        signal.raise_signal(signal.SIGINT)

    def close(self):
        signal.raise_signal(signal.SIGINT)
        self.finish_reason = "cancelled"


def test_ctrl_c_twice(capsys):
    """The second Ctrl-C does not disturb what the first one began; a third is heard again."""
    assert common.stream(Answer()) is False

    assert capsys.readouterr().out == "so far\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_short_wait_is_not_told(monkeypatch):
    """What ends in time needs no line."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())

    with common.waiting("loading x.gguf"):
        pass

    assert screen.getvalue() == ""


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_table_on_a_terminal(monkeypatch, columns):
    """Lines keep to the width of the terminal, and what goes on is indented."""
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    monkeypatch.setenv("COLUMNS", str(columns))

    common.show_table([("a", 1, "one two three four five six"), ("bcd", 22, "seven")])

    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("a    1   one")
    assert lines[-1] == "bcd  22  seven"
    assert all(line.startswith(" " * 9) for line in lines[1:-1])
    assert " ".join(" ".join(lines[:-1]).split()) == "a 1 one two three four five six"


def test_table_in_a_pipe(capsys):
    """Elsewhere a row is a line."""
    common.show_table([("a", "word " * 100)])
    common.show_table([])

    assert capsys.readouterr().out.count("\n") == 1
