"""`umbel numa tune`: which numbers of threads it tries, takes and remembers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import umbel
import umbel_numa
from umbel import cli, plugins
from umbel.errors import UmbelError
from umbel_numa import tuned
from umbel_numa.library import FORCED
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


def test_what_was_found_with_other_options_is_not_meant(config: Path) -> None:
    """Nor overwritten by it; all of it goes when it is forgotten."""
    words = "numa", "tune", str(MODEL), "-p", "8", "-n", "2"
    assert cli.main([*words, "-O", "numa.precise=true"]) == 0
    plugins.get().close()
    (precise,) = json.loads(config.read_text())
    topology, size = read(), MODEL.stat().st_size
    assert precise == f"{tuned.machine(topology)} precise=True"
    assert tuned.Records.of(topology).best(size) is None
    tuned.Records.of(topology).remember(size, (1, 4))
    tuned.Records.of(topology, "precise=True").remember(size, (1, 5))

    for options, expected in (({}, 4), ({"precise": True}, 5)):
        with umbel.load(MODEL, "numa", ctx=8, options={"numa": options}):
            assert umbel_numa.opened().placement.prefill == expected
        plugins.get().close()
    assert tuned.way({"mode": "auto", "threads": 3, "experts": "rows"}) == ""
    assert tuned.way({"mode": "mirror", "precise": True}) == "mode=mirror precise=True"
    assert cli.main(["numa", "tune", "--forget"]) == 0
    assert json.loads(config.read_text()) == {}


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told before anything is measured."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(UmbelError, match="cannot be remembered"):
        tuned.save("experts", {"a": {}})
    assert cli.main(["numa", "tune", str(MODEL), "-p", "8", "-n", "2"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be remembered" in err
    assert str(tmp_path / "file") in err


def test_nothing_is_left_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something else stands in its place."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "umbel" / "numa.json").mkdir(parents=True)
    with pytest.raises(UmbelError, match="cannot be remembered"):
        tuned.save("m", {"30": [1, 2]})
    assert [p.name for p in (tmp_path / "umbel").iterdir()] == ["numa.json"]


def test_forced_kernels_are_a_way_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)
    assert tuned.way({}) == ""
    monkeypatch.setenv(FORCED, "scalar")
    assert tuned.way({"mode": "off"}) == "mode=off kernels=scalar"


def test_nobody_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a container whom the system does not know."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert tuned.load() == {}
    with pytest.raises(UmbelError, match="cannot be remembered"):
        tuned.save("m", {"30": [1, 2]})
    assert not list(tmp_path.iterdir())


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


WRONG = [("-t", "2"), ("-n", "0")]
WRONG += [("-O", f"numa.threads{what}") for what in ("=x", "=2", "_prefill=2")]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["numa", "tune", str(MODEL), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error" in captured.err


def test_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["numa", "tune"]) == 2
    assert "MODEL is missing" in capsys.readouterr().err
