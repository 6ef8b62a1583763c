"""`umbel numa report`: on this machine, and on pretended ones by count."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from umbel import cli, plugins
from umbel.errors import DeviceError
from umbel_numa import report
from umbel_numa.engine import Engine
from umbel_numa.measure import Speed
from umbel_numa.placement import Placement

MODEL = Path(__file__).parents[2] / "core/tests/data/oracles/stories260K.gguf"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*words): exit code, stdout, stderr of `umbel numa`."""

    def command(*words: object) -> tuple[int, str, str]:
        plugins.get().close()
        code = cli.main(["numa", *map(str, words)])
        plugins.get().close()
        return code, *capsys.readouterr()

    return command


def test_report(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = (MODEL, "-p", 16, "-n", 4, "-b", "1,3", "-t", 2, "--sweep", "--json", file)
    code, out, _ = run("report", *words)

    assert code == 0
    assert [line.split()[:3] for line in out.splitlines() if line[:3] in ("PP ", "16 ")] == [
        ["PP", "TG", "B"],
        ["16", "4", "1"],
        ["16", "4", "3"],
    ]
    found = json.loads(file.read_text())
    (node,) = found["nodes"]
    assert (node["threads"], node["threads_prefill"]) == (2, 2)
    assert node["read"] > 0.8 * found["nbytes"]
    assert found["misplaced"] == 0
    assert sum(found["times"].values()) == pytest.approx(1)
    assert [row["threads"] for row in found["barriers"]] == [1, 2]
    assert all(row["two_level"] > 0 and row["flat"] > 0 for row in found["barriers"])
    assert found["machine"]["nodes"]
    assert found["engine"]["kernels"] in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-b", "0"), "there is nothing to measure"),
        (("-b", "x"), "argument -b: expected whole numbers"),
        (("-n", "-1"), "there is no step of decoding to measure"),
        (("-n", "1"), "there is no step of decoding to measure"),
        (("-p", "0"), "there is nothing to measure"),
        (("--json", "nowhere/report.json"), "there is no such folder"),
        (("-O", "numa.mode=both"), "numa.mode"),
        (("--json", MODEL), "another kind of file"),
    ],
)
def test_wrong_words(run: Run, words: tuple[str, ...], told: str) -> None:
    code, out, err = run("report", MODEL, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_a_model_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, _, err = run("report", tmp_path / "none.gguf")
    assert code == 2
    assert "none.gguf" in err


def test_speeds_are_counted_as_llama_batched_bench_does() -> None:
    speed = Speed(pp=100, tg=10, b=4, read=2.0, written=0.5)
    assert (speed.s_pp, speed.s_tg, speed.s) == (200, 80, 176)


@pytest.mark.parametrize(
    ("used", "of", "better"), [(2, 64, "rows"), (64, 64, "rows"), (1, 8, "rows")]
)
def test_experts(used: int, of: int, better: str) -> None:
    """Few experts seldom lie evenly on the nodes; with all of them both ways are alike."""
    numa = Engine(placement=Placement((-1,) * 4, (0, 0, 1, 1), (0, 0)))
    found = report._experts(numa, (used, of), {})
    assert report._experts(numa, (1, 1), {}) is None
    favourite = report._experts(numa, (1, 8), {"w": [700, 0, 0, 0, 100, 200, 200, 200]})
    numa.close()
    assert found is not None
    assert (found.rows, found.better) == (0.5, better)
    assert found.whole == pytest.approx({2: 0.75, 64: 0.5, 1: 1.0}[used], abs=0.05)
    assert found.by_use == found.whole
    assert favourite is not None
    assert favourite.whole == favourite.by_use == 1


def test_threads_that_meet() -> None:
    where = Placement((0, 1, 2, 3, 4, 5), (0, 0, 0, 1, 1, 1), (0, 1))
    assert report._taking_part(where, [2, 1]) == ([0, 1, 3], [0, 0, 1])


def test_threads_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a barrier was not timed is no time."""
    numa = Engine(2)
    real = report.library()

    class Failing:
        def __getattr__(self, name: str) -> object:
            failing = name == "un_barrier_time"
            return (lambda *_: float(-errno.EAGAIN)) if failing else getattr(real, name)

    monkeypatch.setattr(report, "library", Failing)
    with pytest.raises(DeviceError, match="cannot start 2 threads") as told:
        list(report.barriers(numa.placement, numa, sweep=False))
    numa.close()
    assert told.value.got == os.strerror(errno.EAGAIN)
