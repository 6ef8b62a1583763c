"""`umbel plugins`, and the commands that plugins bring."""

from __future__ import annotations

import pytest
from umbel import plugins


@pytest.fixture
def broken(add_toy):
    """A backend that cannot tell its devices."""

    def devices():
        msg = "no wheels"
        raise ValueError(msg)

    add_toy(devices=devices)


def test_text(umbel, toy):
    """Backends, and the options of all."""
    done = umbel("plugins")

    assert (done.code, done.err) == (0, "")
    assert "toy   ok  umbel-toy 1.0  toy:0" in done.out
    assert "-O host.threads=" in done.out
    assert "(None)" not in done.out


def test_fault(umbel, broken):
    """A plugin that fails is named, with the reason; the traceback comes with --debug."""
    done, debug = umbel("plugins"), umbel("plugins", "--debug")

    assert (done.code, debug.code) == (0, 0)
    assert "toy FAILED umbel-toy 1.0 devices(): ValueError: no wheels" in " ".join(
        done.out.split()
    )
    assert "Traceback" not in done.out
    assert "Traceback" in debug.out


def test_command_of_a_backend(umbel, toy):
    """`umbel BACKEND` is the plugin's own, with its options and its exit code."""
    done = umbel("toy", "--times", "2")

    assert (done.code, done.out, done.err) == (5, "play play \n", "")
    assert (umbel("toy", "--tims").code, umbel("toy", "--tims").out) == (2, "")
    assert "--times" in umbel("toy", "--help").out


def test_backend_without_commands(umbel):
    """A backend that has none is no command."""
    done = umbel("host")

    assert (done.code, done.out) == (2, "")
    assert "there is no command 'host'" in done.err


def test_commands_that_fail(umbel, add_toy):
    """A plugin whose commands cannot be had is one error that names it."""

    def commands(cli):
        raise KeyError("toys")

    add_toy(commands=commands)

    done = umbel("toy")

    assert (done.code, done.out) == (2, "")
    assert "the plugin 'toy' failed in commands" in done.err
    assert umbel("devices").code == 0


def test_plugin_that_is_not_there(umbel, monkeypatch):
    """A command named as a plugin that failed tells that fault."""
    monkeypatch.setattr(plugins, "_process", plugins.Plugins(only="gone"))

    done = umbel("gone")

    assert (done.code, done.out) == (2, "")
    assert "the plugin 'gone' cannot be used" in done.err
