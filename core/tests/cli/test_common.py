"""What the commands share."""

from __future__ import annotations

import contextlib
import io
import signal
import sys

import pytest
from umbel.cli import common


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch):
    """A terminal is told what may take long."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())

    common.say_progress("loading x.gguf")

    assert screen.getvalue() == "umbel: loading x.gguf ...\n"


def test_no_progress_elsewhere(monkeypatch):
    """A file or a pipe gets notes, figures and errors alone."""
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())

    common.say_progress("loading x.gguf")

    assert pipe.getvalue() == ""


@pytest.mark.parametrize(("seconds", "bars"), [(0.9, 0), (1.1, 1)])
def test_bar(monkeypatch, seconds, bars):
    """Loading that takes over a second shows how far it is."""
    shown, now = [], iter([0.0, seconds])

    @contextlib.contextmanager
    def live():
        yield shown.append

    monkeypatch.setattr(common, "live", live)
    monkeypatch.setattr(common.time, "monotonic", lambda: next(now))

    with common.bar() as progress:
        progress(1 << 20, 3 << 20)

    assert shown == [f"[{'#' * 10}{' ' * 20}] 1.0 MiB of 3.0 MiB"] * bars


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
    answer = Answer()

    common.stream(answer)

    assert answer.finish_reason == "cancelled"
    assert capsys.readouterr().out == "so far\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_table(capsys):
    """A row is a line, its cells stand below each other."""
    common.show_table([("a", 1, "one two"), ("bcd", 22, "")])
    common.show_table([])

    assert capsys.readouterr().out == "a    1   one two\nbcd  22\n"
