"""`umbel completion`: the scripts, tried in the shells that are here (bash always is)."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BASH = """
source ./script
COMP_WORDS=({line})
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_umbel 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
CASES = [  # what is typed, what is offered, what is not
    ("umbel in", {"inspect"}, {"run"}),
    ("umbel inspect --te", {"--tensors"}, {"--json"}),
    ("umbel run --kv ", {"f32", "f16", "q8_0"}, {"model.gguf"}),
    ("umbel inspect ", {"model.gguf"}, {"notes.txt"}),
    ("umbel run --device ", {"auto", "host"}, {"host:0"}),
    ("umbel run --chat-template ", {"notes.txt"}, {"auto"}),
]


@pytest.fixture
def script(umbel, tmp_path, monkeypatch):
    """A folder with some files and the script of a shell."""
    monkeypatch.chdir(tmp_path)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", programs)
    for name in ("model.gguf", "notes.txt"):
        (tmp_path / name).touch()

    def write(shell):
        done = umbel("completion", shell)
        assert (done.code, done.err) == (0, "")
        (tmp_path / "script").write_text(done.out)

    return write


def in_bash(line, _):
    code = BASH.replace("{line}", f"{line}''")
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True).stdout.split()


def in_fish(line, _):
    code = f"source ./script; complete -C '{line}'"
    done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    return [found.partition("\t")[0] for found in done.stdout.splitlines()]


def in_zsh(line, expected):
    """What a terminal shows after the Tab key was pressed twice."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb"})

    def read(words):
        shown, end = "", time.monotonic() + 20
        while (left := end - time.monotonic()) > 0 and not all(word in shown for word in words):
            if select.select([terminal], [], [], left)[0]:
                shown += os.read(terminal, 65536).decode(errors="replace").replace("\b", "")
        return shown

    setup = 'autoload -Uz compinit; compinit -u -D; eval "$(<script)"; PS1=; echo read""y\n'
    os.write(terminal, setup.encode())
    try:
        assert "ready\r\n" in read(["ready\r\n"])
        os.write(terminal, f"{line}\t\t".encode())
        return read(expected).split()
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


ASK = {"bash": in_bash, "fish": in_fish, "zsh": in_zsh}


@pytest.mark.parametrize("shell", [name for name in ASK if shutil.which(name)])
def test_in_the_shell(script, shell):
    """Commands, options, choices, model files, devices and other files are completed."""
    script(shell)

    for line, expected, others in CASES:
        offered = set(ASK[shell](line, expected))
        assert expected <= offered, (line, offered)
        assert not others & offered, (line, offered)


def test_commands_of_plugins(umbel, toy):
    """Those that a plugin brings are completed too; one that fails is left out."""
    assert "--times" in umbel("completion", "bash").out


def test_plugin_that_fails(umbel, add_toy):
    """A plugin whose commands fail, or print, does not spoil the script."""

    def commands(cli):
        print("I was here")
        raise ValueError

    add_toy(commands=commands)

    done = umbel("completion", "bash")

    assert (done.code, "I was here" in done.out) == (0, False)


def test_without_the_library(umbel, monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    done = umbel("completion", "zsh")

    assert (done.code, done.out) == (2, "")
    assert "do: pip install 'umbel-core[completion]'" in done.err


def test_other_shell(umbel):
    """A shell that nobody has tried."""
    assert umbel("completion", "tcsh").code == 2
