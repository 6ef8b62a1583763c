"""`umbel quantize`: what it says, and what it leaves when it is stopped."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time

import numpy as np
import pytest


@pytest.fixture
def large(write_gguf, tmp_path):
    """A model that takes a while."""
    values = np.ones((4096, 1024), np.float32)
    tensors = {f"blk.{i}.ffn_up.weight": values for i in range(8)}
    return str(write_gguf(tmp_path / "in.gguf", {"general.architecture": "llama"}, tensors))


def test_result(umbel, story, tmp_path):
    """One line about what was written, on stdout alone; the file is as it says."""
    out = str(tmp_path / "out.gguf")

    done = umbel("quantize", story, out, "q8_0")

    size = os.path.getsize(out) / 2**20
    assert done.code == 0
    sizes = f"1.0 MiB -> {size:.1f} MiB, 10.15 bits per weight"
    assert done.out == f"{out}: {sizes}; tensors: q8_0 31, f32 11, f16 5\n"
    assert done.err.startswith("umbel: note: rows of 172 values are no whole number of q8_0")
    facts = json.loads(umbel("inspect", out, "--json").out)
    assert facts["types"] == {"q8_0": 31, "f32": 11, "f16": 5}


def test_help_names_every_type(umbel):
    """The help has all that there are, and no other."""
    from umbel.tools.quantize.mixtures import MIXTURES

    told = re.findall(r"\b(?:B?F|I?Q)\d+\w*", umbel("quantize", "--help").out)
    assert {*told} == {*MIXTURES}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("quantize", "IN"),
        ("quantize {}", "OUT"),
        ("quantize {} out.gguf", "TYPE"),
        ("quantize {} out.gguf Q9_X", "TYPE"),
        ("quantize {} out.gguf Q8_0 --output-type q9", "--output-type"),
        ("quantize {} out.gguf Q8_0 --output-type=", "--output-type"),
        ("quantize {} out.gguf Q8_0 -t -1", "--threads"),
        ("quantize {} out.gguf Q8_0 -t x", "--threads"),
        ("quantize {} {} Q8_0 --force", "OUT is IN"),
        ("quantize {} there.gguf Q8_0", "there.gguf"),
        ("quantize /nowhere.gguf out.gguf Q8_0", "/nowhere.gguf"),
        ("quantize {} nowhere/out.gguf Q8_0", "nowhere"),
    ],
)
def test_bad_words(umbel, story, tmp_path, monkeypatch, words, named):
    """What is missing or wrong is one error, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.gguf").touch()

    done = umbel(*[word.format(story) for word in words.split()])

    assert (done.code, done.out) == (2, "")
    assert "umbel: error: " in done.err
    assert named in done.err
    assert os.listdir(tmp_path) == ["there.gguf"]


@pytest.mark.parametrize(("columns", "width"), [(24, 23), (0, 79)])
def test_a_terminal_sees_how_far_it_is(lines, large, tmp_path, columns, width):
    """One line, never wider than the terminal, that is gone at the end."""
    shown = lines("quantize", large, str(tmp_path / "o.gguf"), "Q8_0", columns=columns)
    assert re.match(r"umbel: \d+ % of", shown[0])
    assert {len(line) for line in shown} == {width}
    assert shown[-1].isspace()
    assert "\n" not in "".join(shown)


def test_ctrl_c(spawn, large, tmp_path):
    """Nothing is left of it."""
    process = spawn("quantize", large, str(tmp_path / "out.gguf"), "Q5_1")
    deadline = time.monotonic() + 30
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_full_disk(spawn, story, tmp_path):
    """One error, and nothing is left."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    out = tmp_path / "out.gguf"
    process = spawn("quantize", story, str(out), "F16", preexec_fn=full)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 2
    assert b"umbel: error: the file cannot be written\n" in err
    assert os.listdir(tmp_path) == []
