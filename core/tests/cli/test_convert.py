"""`umbel convert`: from a folder to a file that runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

FOLDERS = Path(__file__).parents[1] / "tools/convert/conftest.py"


@pytest.fixture
def folder(tmp_path) -> Path:
    return run_path(str(FOLDERS))["FolderMaker"](tmp_path)("llama")


def test_a_folder_becomes_a_model(umbel, folder, tmp_path):
    """What was written is told, and the file runs."""
    out = tmp_path / "out.gguf"

    done = umbel("convert", str(folder), str(out), "--type", "BF16")

    assert (done.code, done.out, done.err) == (0, f"{out}: 0.0 MiB\n", "")
    assert "bf16" in umbel("inspect", str(out)).out
    assert umbel("run", str(out), "abc", "-n", "3", "--temp", "0").code == 0


def test_a_file_that_exists(umbel, folder, tmp_path):
    """Stays, unless --force replaces it."""
    out = tmp_path / "out.gguf"
    out.write_text("mine")

    refused = umbel("convert", str(folder), str(out))

    assert (refused.code, out.read_text()) == (2, "mine")
    assert "--force" in refused.err
    assert umbel("convert", str(folder), str(out), "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    "words", [(), ("{folder}",), ("{folder}", "{out}", "--type", "Q4_0"), ("none", "{out}")]
)
def test_wrong_arguments(umbel, folder, tmp_path, words):
    """One error, exit code 2, and no file."""
    named = [w.format(folder=folder, out=tmp_path / "out.gguf") for w in words]

    done = umbel("convert", *named)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_note(umbel, folder, tmp_path):
    """What the file cannot say is told on stderr."""
    path = folder / "generation_config.json"
    path.write_text('{"eos_token_id": [1, 2, 3, 4]}')

    done = umbel("convert", str(folder), str(tmp_path / "out.gguf"))

    assert done.code == 0
    assert done.err.startswith("umbel: note: ")


def test_a_terminal_sees_how_far_it_is(lines, folder, tmp_path):
    """The number and the name of a tensor, on the same line."""
    shown = lines("convert", str(folder), str(tmp_path / "out.gguf"), columns=60)
    assert re.match(r"umbel: 1 of \d+ \w+", shown[0])
    assert shown[-1].isspace()


SLOW = """
import os, signal, sys
from umbel.cli import main
from umbel.tools.convert.folder import Folder
original, seen = Folder.array, []
def array(self, name):
    seen.append(name)
    if len(seen) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return original(self, name)
Folder.array = array
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c(folder, tmp_path):
    """In the middle of the tensors: exit code 130, and nothing is left."""
    words = ["convert", str(folder), str(tmp_path / "out.gguf")]
    done = subprocess.run([sys.executable, "-c", SLOW, *words], capture_output=True, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")
    assert list(tmp_path.iterdir()) == [folder]
