"""The benchmark on a tiny model: who takes part, what is told, and what happens to the dead."""

import sys
from pathlib import Path

import attrs
import measure
import pytest
import rivals
import rows
from figures import Sample
from machine import Limits, Machine, Watch, busy, describe
from measure import Bench, Engine, Measured, Worker
from rows import Facts, Row, decode, prefill

STORIES = Path(__file__).parents[2] / "core/tests/data/oracles/stories260K.gguf"
TINY = Row("tiny", "", (prefill(8, "2x"), decode(4, depth=8, sequences=2)), ctx=32, parallel=2)


@pytest.fixture(scope="module")
def machine():
    with Machine(threads=1, mebibytes=4) as machine:
        yield machine


@pytest.fixture
def bench(machine):
    """Nobody waits for a calm machine here, and every load is borne."""
    machine.seen.clear()
    return Bench(machine=machine, device="host:0", llama_cpp=None, samples=2, foreign=9.0)


def script(path, text):
    """Something in the place of a Python."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_machine(machine):
    assert all(v > 0 for v in attrs.astuple(machine.limits(1)))
    assert machine.probe().bandwidth > 0
    assert "GiB of memory" in describe()
    with machine.spinning():
        assert len(machine.pids) == 3
        watch = Watch(machine.pids)
        with machine.disturbed():
            machine.probe()
        assert watch.foreign() < 1.01
    assert len(machine.pids) == 2


def test_it_waits_for_others(machine, monkeypatch):
    """Until they leave the processors alone, or patience is at its end."""
    loads = [0.5, 0.4, 0.01, 0.0]
    monkeypatch.setattr(Watch, "foreign", lambda self: loads.pop(0))
    machine.settle(0.05, 60)
    assert loads == [0.0]
    machine.settle(0.05, 0)
    assert loads == [0.0]


def test_busy():
    """Idle and waiting time are nobody's; stolen time is, and a guest's is counted once."""
    assert busy("cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 9 9 9") == 1 + 2 + 4 + 8 + 16 + 32


def test_facts():
    """A tied embedding is read for the logits, and takes no part in a prompt."""
    facts = Facts.of(STORIES)

    assert facts.floats
    assert facts.kv == 2 * 2 * 5 * 8 * 4  # layers, values of a head, heads
    assert facts.read == 4 * (facts.weights + 11 * 64 + 512 * 64)  # all float32
    assert facts.repacked == []


def test_need():
    facts = Facts(
        STORIES, size=0, read=6 * 10**9, weights=10**9, kv=10**6, floats=False, repacked=[]
    )

    assert prefill(512).need(facts) == 2
    assert decode(64).need(facts) == 6
    assert decode(64, depth=1000, sequences=3).need(facts) == 2 + 1
    assert rows.FIRST.works[0].need(facts) == 0


def test_a_row(bench):
    """Ours alone: as many samples as are wanted, and a line that can be read."""
    facts = Facts.of(STORIES)
    measured = list(bench.measure(TINY, facts, 1))

    assert [one.name for one in measured] == ["tiny pp8", "tiny tg4 at 8 x 2 sequences"]
    for one in measured:
        assert {s.engine for s in one.samples} == {"umbel"}
        assert all(s.seconds > 0 for s in one.samples)
    page = rivals.Page(bench=bench, limits={1: Limits(10, 10, 10)}, measured=measured)
    assert {len(line) for one in measured for line in page.lines(one)} == {len(rivals.HEADS)}
    assert "| tiny pp8 | 1 |" in str(page)
    assert bench.versions["umbel"].endswith("on host:0")


def test_the_share_of_python(bench):
    share = bench.python_share(attrs.evolve(TINY, works=(decode(4),)), Facts.of(STORIES), 1)

    assert 0 < share < 1


def test_memory(bench):
    row = attrs.evolve(TINY, works=(decode(4),))
    ((name, peak),) = bench.memory(row, Facts.of(STORIES), 1).items()

    assert name == "umbel (host:0)"
    assert peak > 0


def test_the_first_token(bench):
    bench = attrs.evolve(bench, samples=1)

    measured = bench.commands(rows.FIRST, Facts.of(STORIES), 1)

    assert measured.samples[0].seconds > 0.05  # Python has to start
    page = rivals.Page(bench=bench, limits={1: Limits(10, 10, 10)})
    assert next(page.lines(measured))[4].endswith(" s")


def test_who_dies_is_told(bench, tmp_path):
    """llama.cpp with a setting that ends its process: named with its signal, and left out."""
    bench = attrs.evolve(
        bench, llama_cpp=script(tmp_path / "python", "kill -ILL $$"), samples=1
    )

    measured = list(bench.measure(TINY, Facts.of(STORIES), 1))

    assert [one.setting for one in measured] == ["-", "-"]
    assert dict(bench.died) == {
        "llama.cpp, extra: died of SIGILL": 1,
        "llama.cpp, plain: died of SIGILL": 1,
    }
    assert "died of SIGILL (1 times)" in str(rivals.Page(bench=bench, limits={}))


def test_a_worker_that_refuses(tmp_path):
    worker = Worker(Engine(sys.executable, "umbel", "nonesuch"))
    with pytest.raises(measure.Died, match="nonesuch"):
        worker.ask("load", str(STORIES), 1, 32, 1, [])
    worker.close()


def test_a_worker_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "LIMIT", 0.1)
    worker = Worker(Engine(script(tmp_path / "python", "exec sleep 60"), "umbel", ""))
    with pytest.raises(measure.Died, match="no answer"):
        worker.ask("start")
    worker.close()


class Rival:
    """Llama.cpp with given seconds for each call."""

    variants = measure.FLASH
    pid = 1

    def __init__(self, setting, *seconds):
        self.engine, self.seconds = Engine("", "llama.cpp", setting), seconds
        self.asked = []

    def ask(self, call, *args):
        flash = args[-1]
        self.asked.append(flash)
        return self.seconds[not flash]


def test_the_best_setting_is_the_rival(bench):
    """Of all ways to run llama.cpp; one that is far behind is tried once."""
    plain, repack = Rival("plain", 1.5, 9.0), Rival("repack", 2.0, 1.0)

    (choice,) = bench.choose([plain, repack], prefill(8))

    assert choice.setting == "repack, no flash attention"
    assert plain.asked == [True, False, True]
    assert repack.asked == [True, False, True, False]


def test_lines(bench):
    """Rates, the ratio, and what both reach of the limits, for each placement."""
    probe = bench.machine.probe()
    taken = [
        Sample(engine, turn, seconds, probe, probe, 0.0)
        for turn in range(3)
        for engine, seconds in (("umbel", 0.1), ("llama.cpp", 0.3))
    ]
    facts = Facts(STORIES, size=0, read=10**9, weights=10**8, kv=0, floats=False, repacked=[])
    page = rivals.Page(bench=bench, limits={2: Limits(100, 50, 80)})
    prompt = Measured("a pp10", prefill(10, "2x"), facts, 2, taken, "plain")
    answer = Measured("a tg4", decode(4), facts, 2, taken, "plain")

    (line,) = page.lines(prompt)
    assert line[3:9] == ["33.3 t/s", "100 t/s", "3.00x", "2x", "7 %", "20 %"]
    assert line[9:] == ["3 + 3", "0", "plain"]
    (line,) = page.lines(answer)
    assert line[3:9] == ["13.3 t/s", "40.0 t/s", "3.00x", "-", "17 %", "50 %"]
    (line,) = page.lines(attrs.evolve(answer, samples=[]))
    assert line == ["a tg4", "2", *["-"] * 7, *["-"], "0", "plain"]


def test_renew(tmp_path):
    """What stands around the marks stays; no backslash is taken for a reference."""
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- rivals -->\nold\n<!-- end of rivals -->\nz\n")

    rivals.renew(page, r"new \1")

    assert page.read_text() == "a\n<!-- rivals -->\n\nnew \\1\n\n<!-- end of rivals -->\nz\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "folder"),
        (["--models", "m", "--row", "none"], "invalid choice"),
        (["--models", "m", "--threads", "0"], "1 or more"),
        (["--models", "m", "--write", "nowhere.md"], "mark"),
    ],
)
def test_bad_arguments(given, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rivals.py", *given])
    with pytest.raises(SystemExit, match="2"):
        rivals.parse()
    assert told in capsys.readouterr().err


def test_list(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rivals.py", "--list"])
    rivals.main()

    assert capsys.readouterr().out.split() == list(rows.NAMES)


def test_what_is_told_of_the_command_names_no_place():
    given = ["--models=/a", "--threads", "2", "1", "--llama-cpp", "/b", "--quick", "--write=c"]

    assert rivals.without_paths(given) == ["--threads", "2", "1", "--quick"]
