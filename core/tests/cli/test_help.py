"""Help is fast and complete: it loads neither the engine nor a plugin."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from umbel import __version__
from umbel.cli import parser
from umbel.cli.common import SAMPLING
from umbel.sampling import Settings

COMMANDS = (
    "run",
    "chat",
    "bench",
    "inspect",
    "tokenize",
    "convert",
    "devices",
    "plugins",
    "plan",
)
HEAVY = (
    "numpy",
    "attrs",
    "gguf",
    "jinja2",
    "pluggy",
    "umbel.model",
    "umbel.plugins",
    "umbel.sampling",
)


@pytest.mark.parametrize("columns", ["24", "80"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(umbel, monkeypatch, command, columns):
    """Each command tells its options, on a small terminal too."""
    monkeypatch.setenv("COLUMNS", columns)

    done = umbel(command, "--help")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: umbel {command}")
    assert "--debug" in done.out


def test_help_lists_the_commands(umbel):
    """`umbel --help` and `umbel` alone show the same."""
    shown = umbel("--help")

    assert all(f"\n    {command} " in shown.out for command in COMMANDS)
    assert shown == umbel()


def test_version(umbel):
    """`--version` tells the version."""
    assert f"umbel {__version__}\n" == umbel("--version").out


def test_help_imports_no_engine():
    """No help, and no error of an option, imports NumPy, the engine or a plugin."""
    code = (
        "import sys, json; from umbel.cli import main\n"
        f"calls = [['--help'], ['--version'], *([c, '--help'] for c in {COMMANDS})]\n"
        "codes = [main(c) for c in calls] + [main(['run', 'm', 'x', '--ctx', 'x'])]\n"
        f"print('\\n' + json.dumps([codes, [m for m in {HEAVY} if m in sys.modules]]))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * (len(COMMANDS) + 2) + [2], []]


@pytest.mark.parametrize("row", SAMPLING, ids=lambda row: row[0])
def test_help_tells_the_default(row):
    """The default in the help of a sampling option is that of the sampler."""
    flags, _, text = row
    name = flags.split()[0].removeprefix("--").replace("-", "_")
    if name not in ("samplers", "seed"):
        assert text.endswith(f"({getattr(Settings(), name)})")


def test_all_sampling_settings_have_an_option():
    """No setting of the sampler is out of reach of the command line."""
    known = parser()[1].choices["run"]._option_string_actions

    names = [f"--{name.replace('_', '-')}" for name in Settings.__annotations__]

    assert [name for name in names if name not in known] == []
