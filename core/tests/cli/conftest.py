"""The command line in this process (fast) or in one of its own (signals, pipes, terminals)."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from umbel import host, plugins
from umbel.cli import main
from umbel.hookspecs import Device, Finding, hookimpl

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@attrs.frozen
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def only_host(monkeypatch: pytest.MonkeyPatch) -> plugins.Plugins:
    """Whatever is installed beside it: the host alone, in this process and in others."""
    found = plugins.Plugins(only="")
    monkeypatch.setattr(plugins, "_process", found)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it hides what comes at the end
    return found


@pytest.fixture
def story() -> str:
    """A model that tells stories (stories260K, 512 tokens of context)."""
    return str(ORACLES / "stories260K.gguf")


@pytest.fixture
def oracles() -> Path:
    return ORACLES


@pytest.fixture
def template(tmp_path: Path) -> str:
    """A file with a chat template: the model of the stories has none."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return str(path)


@pytest.fixture
def umbel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs a command in this process; `stdin` is what is piped in."""

    def run(*words: str, stdin: str | None = None) -> Result:
        pipe = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin.encode()))
        monkeypatch.setattr(sys, "stdin", pipe)
        code = main(words)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def lines(spawn: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., list[str]]:
    """Runs a command with a terminal as stderr; what that was told, up to each return."""

    def run(*words: str, columns: int = 24) -> list[str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
        process = spawn(*words, stderr=theirs)
        assert process.wait(60) == 0
        os.close(theirs)
        shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
        return [line for line in shown.split("\r") if line]

    return run


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **more: object) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | more
        process = subprocess.Popen([sys.executable, "-m", "umbel", *words], **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def toy_commands(cli):
    parser = cli.add_parser("toy", help="plays")
    parser.add_argument("--times", type=int, default=1)
    parser.set_defaults(run=lambda args: print("play " * args.times) or 5)


@pytest.fixture
def add_toy(only_host: plugins.Plugins) -> Callable[..., None]:
    """Adds a backend `toy` that computes as the host does, but no swiglu and no get_rows."""

    def add(*, simulated: bool = False, **more: Callable) -> None:
        made = types.ModuleType("umbel_toy")
        made.UMBEL_API = 1
        hooks = {
            "devices": lambda: [Device("toy:0", "a toy", 10, simulated)],
            "op_supported": lambda device, node: (
                "not in a toy" if node.op.name in ("swiglu", "get_rows") else None
            ),
            "doctor": lambda: [Finding("warning", "a wheel is loose", "tighten it")],
            **more,
        }
        for name, hook in hooks.items():
            setattr(made, name, hookimpl(hook))
        for name in ("options", "open", "close", "buffer_type", "graph_compute", "forget"):
            setattr(made, name, getattr(host, name))
        only_host.add("toy", made, "umbel-toy", "1.0")

    return add


@pytest.fixture
def toy(add_toy: Callable[..., None]) -> None:
    add_toy(commands=toy_commands)
