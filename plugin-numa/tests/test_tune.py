"""`umbel numa tune`: which numbers of threads it tries, takes and remembers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import umbel
import umbel_numa
from umbel import cli, plugins
from umbel_numa import tuned
from umbel_numa.topology import read
from umbel_numa.tune import Trial, best, coarse, decode_of, near, prefill_of

MODEL = Path(__file__).parents[2] / "core/tests/data/oracles/stories260K.gguf"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration of one's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    plugins.get().close()
    yield tmp_path / "umbel" / "numa.json"
    plugins.get().close()


def test_what_is_tried() -> None:
    assert list(coarse(1, 1)) == [1]
    assert list(coarse(1, 6)) == [1, 2, 3, 4, 5, 6]
    assert list(coarse(2, 20)) == [2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]
    assert near(16, [8, 12, 16, 20]) == [14, 18]
    assert near(2, [1, 2, 3]) == []
    assert near(128, [96, 112, 128]) == [120]


def test_the_fewest_of_those_that_are_nearly_the_fastest() -> None:
    trials = [Trial(1, 50, 10), Trial(2, 100, 19.9), Trial(3, 150, 20), Trial(4, 200, 12)]
    assert (best(trials, decode_of), best(trials, prefill_of)) == (2, 4)


def test_tune_and_forget(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["numa", "tune", str(MODEL), "-p", "8", "-n", "2"]) == 0
    out = capsys.readouterr().out
    assert "threads" in out
    assert str(config) in out
    (sizes,) = json.loads(config.read_text()).values()
    (counts,) = sizes.values()
    assert all(n >= 1 for n in counts)

    assert cli.main(["numa", "tune", "--forget"]) == 0
    assert cli.main(["numa", "tune", "--forget"]) == 0
    assert capsys.readouterr().out.splitlines() == ["forgotten", "there was nothing to forget"]
    assert json.loads(config.read_text()) == {}


def test_what_is_known_is_used_where_nothing_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topology, nbytes = read(), MODEL.stat().st_size
    usual = len(umbel_numa.placement({}, topology).cpus)
    records = tuned.Records.of(topology)
    records.remember(nbytes, (usual + 1, usual + 2))

    with umbel.load(MODEL, "numa", ctx=8) as model:
        model.generate("a", max_tokens=1).read()
        told = model.runner.targets[0].hooks.status(umbel_numa.DEVICE)
    assert (told["threads"], told["threads_prefill"]) == (usual + 1, usual + 2)
    assert "as `umbel numa tune` found them" in caplog.text
    plugins.get().close()
    with umbel.load(MODEL, "numa", ctx=8, threads=1):
        assert umbel_numa.opened().threads == 1


def test_models_of_another_size_are_not_meant() -> None:
    records = tuned.Records("m", {tuned.size_class(1 << 30): (3, 4)})
    assert records.best((1 << 31) - 1) == (3, 4)
    assert records.best(1 << 31) is None
    assert records.threads() == [3, 4]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', '{"NAME": {"30": [1, "2"]}}'])
def test_a_file_that_was_changed_by_hand(config: Path, text: str) -> None:
    name = tuned.machine(read())
    config.parent.mkdir()
    config.write_text(text.replace("NAME", name))
    records = tuned.Records.of(read())
    assert records.counts == {}
    records.remember(1, (1, 2))
    assert tuned.Records.of(read()).best(1) == (1, 2)


@pytest.mark.parametrize("words", [("-t", "2"), ("-n", "0"), ("-O", "numa.threads=x")])
def test_wrong_words(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["numa", "tune", str(MODEL), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error" in captured.err


def test_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["numa", "tune"]) == 2
    assert "MODEL is missing" in capsys.readouterr().err
