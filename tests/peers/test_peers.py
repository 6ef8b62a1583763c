"""The figures of `nox -s peers`, and how it takes an engine that cannot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
STORIES = HERE.parents[1] / "core/tests/data/oracles/stories260K.gguf"

spec = importlib.util.spec_from_file_location("peers", HERE / "peers.py")
assert spec is not None
assert spec.loader is not None
peers = importlib.util.module_from_spec(spec)
sys.modules["peers"] = peers  # attrs looks there
spec.loader.exec_module(peers)


def test_figures():
    """Known logits: one of two best tokens is the same."""
    reference = np.log([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    logits = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    same, largest, mean, divergence = peers.figures(logits, reference)

    assert (same, largest) == ("50.0 %", f"{np.log(2):.1e}")
    assert mean == f"{np.log(2) / 3:.1e}"
    assert divergence == f"{0.25 * np.log(2) / 2:.1e}"


def test_perplexity():
    """A model that knows nothing of four tokens is at four."""
    assert peers.perplexity(np.full((3, 4), 7.0), [0, 1, 2]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [([1, 2, 3], [1, 2], "2 of 2"), ([1, 9, 2], [1, 2, 2], "1 of 3"), ([1], [1, 2], "1 of 2")],
)
def test_same_text(theirs, ours, expected):
    """Tokens count up to the first that differs."""
    assert peers.same_text(theirs, ours) == expected


def test_an_engine():
    """It answers, says what it refuses, and its end is told."""
    with peers.Peers({"umbel": sys.executable}, threads=1).start("umbel") as engine:
        with pytest.raises(peers.Refused, match="no such model file"):
            engine.load(HERE / "no.gguf", whole=True)
        assert engine.load(STORIES, whole=True) > 0
        ids = engine.ask("tokenize", "Once upon a time")[0]
        assert engine.logits(ids).shape == (len(ids), 512)
        tokens, first, rest = engine.ask("greedy", ids, 4)[0]
        assert (len(tokens), min(first, rest) > 0) == (4, True)
        assert engine.ask("peak_memory")[0] > 1 << 20
        engine._process.kill()
        with pytest.raises(peers.Refused, match="ended"):
            engine.ask("version")


def test_an_engine_that_cannot(tmp_path):
    """A peer that does not start is a cell of the table, which says why."""
    dead = tmp_path / "python"
    dead.write_text("#!/bin/sh\nexit 3\n")
    dead.chmod(0o755)
    pythons = {"umbel": sys.executable, "transformers": str(dead), "llama.cpp": str(dead)}
    rows = list(peers.agreement(peers.Peers(pythons, 1), "x", STORIES, [1, 403, 407]))

    assert [row[1] for row in rows] == list(peers.ENGINES)
    assert [row[-1] for row in rows] == ["", *["its process ended with code 3"] * 2]
    assert (rows[0][-2], rows[1][-2]) == ("24 of 24", "-")
    assert len({len(row) for row in rows}) == 1
