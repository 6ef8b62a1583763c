"""What chips can do, found by trying: verdicts, faults, crashes, and what is kept of them."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import umbel_cann_simulator
from umbel.errors import DeviceError
from umbel_cann import chips
from umbel_cann.acl.prototypes import OPERATORS
from umbel_cann.acl.toolkit import SIMULATOR, Toolkit
from umbel_cann.probing import cache, known, parent, tried
from umbel_cann.probing.cases import probes

CHIPS = ("310B", "310P", "910B")
SOCS = {"310B": "Ascend310B4", "310P": "Ascend310P3", "910B": "Ascend910B3"}
STORY = Path(__file__).parents[2] / "core/tests/data/oracles/stories260K.gguf"
FAULT = "UMBEL_CANN_FAULT"
NAMES = {probe.name: probe for probe in probes()}

# What the chips' files have as rules, beside their operators' dtypes.
RULES: Mapping[str, set[str]] = {
    "310B": {"Mm f16 64 rows of 4224", "Add f16 over its input", "capture f16"},
    "310P": {"Addmm f32", "Mm f32", "Matmul f32", "BatchMatMul f32", "capture f16"}
    | {"Convolution f32 exact"}
    | {f"RmsNorm {dtype} rows of 16 bytes" for dtype in ("f16", "f32")}
    | {f"WeightQuantBatchMatmulV2 f16 int4{more}" for more in ("", " offset")},
    "910B": set(),
}


@pytest.fixture
def toolkit() -> Toolkit:
    return Toolkit(umbel_cann_simulator.TOOLKIT)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test in which nothing is known yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    return tmp_path / "own/umbel/cann"


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """on(chip, fault): from now on."""

    def choose(chip: str, fault: str = "") -> None:
        monkeypatch.setenv(SIMULATOR, chip)
        monkeypatch.setenv(FAULT, fault)

    return choose


def failed(tries: parent.Tries) -> set[str]:
    return {name for name, why in tries.verdicts.items() if why}


def lacking(chip: str) -> set[str]:
    """The probes that cannot work, as the chip's file has it."""
    text = (umbel_cann_simulator.TOOLKIT / "chips" / f"{chip}.txt").read_text()
    lines = re.findall(r"^op (\w+)([^|\n]*)", text, re.MULTILINE)
    runs = {name: dtypes.split() for name, dtypes in lines}
    steps = {n: {s[0] for s in p.steps} for n, p in NAMES.items()}
    by_file = {
        n for n, p in NAMES.items() if any(p.dtype not in runs.get(o, ()) for o in steps[n])
    }
    return by_file | RULES[chip]


@pytest.mark.parametrize("chip", CHIPS)
def test_verdicts(
    chip: str,
    on: Callable[..., None],
    toolkit: Toolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the chip's file, from one process, which leaves nothing behind."""
    on(chip)
    monkeypatch.setenv("UMBEL_CANN_SIMULATOR_REPORT", str(tmp_path / "report.json"))
    tries = parent.run(toolkit, 0)
    assert tries.soc == SOCS[chip]
    assert list(tries.verdicts) == list(NAMES)
    assert failed(tries) == lacking(chip)
    assert tries.children == 1
    told = json.loads((tmp_path / "report.json").read_text())
    assert not any(n for k, n in told["counters"].items() if k.startswith("leaked"))
    assert not any(told["alive"].values()), told["alive"]


@pytest.mark.parametrize("chip", CHIPS)
def test_a_chip_of_its_verdicts(chip: str) -> None:
    """As others measured it, but for what nobody had tried."""
    bad = lacking(chip)
    found = chips.tried(SOCS[chip], {n: "it fails" if n in bad else None for n in NAMES})
    assumed = chips.chip(SOCS[chip])
    for what in ("name", "dtype", "gather", "float32", "float32_products", "weight_quant"):
        assert getattr(found, what) == getattr(assumed, what), what
    assert found.scatters == (chip != "310B")
    assert found.short == assumed.short - {"BatchMatMul"}  # nobody has seen that fail
    assert found.least_row == (0 if chip == "910B" else 32)
    assert (found.alias, found.capture) == (chip != "310B", chip == "910B")
    exact = found.why_not("Mm", "f32")
    assert exact == (None if chip == "910B" else "aclnnMm of f32: it fails")
    assert [found.why_not("Mm", *dtype) for dtype in ((), ("f16",), ("i8",))] == [None] * 3
    quantised = found.why_not("WeightQuantBatchMatmulV2", "f16")
    assert (quantised is None) == (chip != "310B")
    attention = "FusedInferAttentionScoreV2"
    assert (found.why_not(attention) is None) == (chip == "910B")
    assert (found.why_not(attention, "f32") is None) == (chip == "910B")  # as with any


def test_other_operators_take_their_place() -> None:
    """The next one that gathers; values of float16 where one basic operator lacks float32."""
    verdicts = {n: "no" if n.startswith("GatherV2") else None for n in NAMES}
    assert chips.tried("Ascend910B3", verdicts).gather == "Embedding"
    verdicts = {n: "no" if n == "Softmax f32" else None for n in NAMES}
    found = chips.tried("AscendNew", verdicts)
    assert (found.name, found.dtype) == ("New", "f16")
    assert not found.float32
    assert not found.float32_products


def of(operator: str) -> set[str]:
    return {n for n, p in NAMES.items() if any(step[0] == operator for step in p.steps)}


@pytest.mark.parametrize(
    ("fault", "bad", "why", "children"),
    [
        ("kernel=Mm", of("Mm"), "its kernel package is not installed: .* \\(561112\\)", 1),
        ("wrong=Tanh", of("Tanh"), "it computes wrong numbers", 1),
        ("crash=Exp", of("Exp"), "the process died of SIGSEGV", 3),
        ("crash=Topk", of("Topk"), "the process died of SIGSEGV", 3),
        ("crash=Add", of("Add"), "the process died of SIGSEGV", 6),
        ("phase1=40", None, "the library failed within it: .* \\(561000\\)", 1),
        ("task=60", set(), "", 2),  # a fault of the device: the second time it works
        ("hang=60", set(), "", 2),
    ],
)
def test_faults(
    fault: str,
    bad: set[str] | None,
    why: str,
    children: int,
    on: Callable[..., None],
    toolkit: Toolkit,
) -> None:
    """They are the verdict of what was under way, and of nothing else."""
    on("910B", fault)
    tries = parent.run(toolkit, 0, limit=2.0 if fault.startswith("hang") else parent.LIMIT)
    assert len(tries.verdicts) == len(NAMES)
    if bad is None:
        assert len(failed(tries)) == 1
    else:
        assert failed(tries) == bad
    for name in failed(tries):
        assert re.fullmatch(why, tries.verdicts[name] or ""), tries.verdicts[name]
    assert tries.children <= children


def test_a_symbol_is_missing(on: Callable[..., None], tmp_path: Path) -> None:
    on("910B")
    older = umbel_cann_simulator.without(tmp_path / "old", "aclnnSilu", "aclmdlRICaptureBegin")
    tries = parent.run(Toolkit(older), 0)
    assert failed(tries) == {"Silu f16", "Silu f32", "capture f16"}
    assert tries.verdicts["Silu f16"] == "it is not in this version of CANN"
    assert "aclmdlRICaptureBegin is not in this" in (tries.verdicts["capture f16"] or "")


def test_a_process_that_is_stuck(
    on: Callable[..., None], toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that does not come back is ended, and another goes on."""
    on("910B")
    stuck = tmp_path / "stuck"
    stuck.write_text(
        f"#!/bin/sh\nif [ ! -e {tmp_path}/once ]; then touch {tmp_path}/once\n"
        'echo \'{"soc": "Ascend910B3", "probes": ["Add f16"]}\'\n'
        "echo 'not JSON'\necho '{\"begin\": \"Add f16\"}'\nexec sleep 60\nfi\n"
        f'exec {sys.executable} "$@"\n'
    )
    stuck.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr(parent, "PATIENCE", 0.5)
    tries = parent.Tries(toolkit, 0, 0.5)
    start = time.monotonic()
    tries.go_on()
    assert time.monotonic() - start < 20
    assert tries.verdicts == {"Add f16": "no answer within 1 s"}
    tries.limit = parent.LIMIT
    tries.go_on()
    assert failed(tries) == {"Add f16"}
    assert tries.done
    assert len(tries.verdicts) == len(NAMES)


def test_nothing_can_be_tried(
    on: Callable[..., None],
    own: Path,
    toolkit: Toolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Then the chip is used as is assumed, a line says so, and nothing is kept."""
    on("910B", "memory=1000")
    assert tried(toolkit, 0, "Ascend910B3") is None
    assert "aclrtMalloc failed" in caplog.text
    on("910B")
    for program, told in (("none", "no process can be started"), ("false", "ended with 1")):
        caplog.clear()
        monkeypatch.setattr(sys, "executable", shutil.which(program) or str(tmp_path / program))
        assert tried(toolkit, 0, "Ascend910B3") is None
        assert told in caplog.text
        assert "what is known of such chips is assumed" in caplog.text
    monkeypatch.undo()
    on("910B")
    bare = umbel_cann_simulator.without(tmp_path / "bare", "libopapi.so")
    with pytest.raises(DeviceError, match="nothing works of what was tried"):
        parent.run(Toolkit(bare), 0)
    assert not own.exists()


def never(*_: object, **__: object) -> parent.Tries:
    msg = "it was tried again"
    raise AssertionError(msg)


def test_what_is_kept(
    on: Callable[..., None],
    own: Path,
    toolkit: Toolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is found again until something changes that decides what works."""
    on("310B")
    soc, folder = SOCS["310B"], tmp_path / "copy"
    shutil.copytree(toolkit.root, folder)
    copy = Toolkit(folder)
    assert known(copy) == []
    first = tried(copy, 0, soc)
    assert first is not None
    assert (first.soc, first.cann) == (soc, "8.3.RC2")
    (line,) = caplog.messages
    assert line.startswith("trying out what an Ascend310B4 can do")
    monkeypatch.setattr(parent, "run", never)
    assert tried(copy, 0, soc) == first
    assert known(copy) == [first]
    assert len(list(own.iterdir())) == 1
    changes: list[Callable[[], object]] = [
        lambda: os.utime(folder / "lib64/libopapi.so", (1, 1)),
        lambda: os.utime(folder / "chips/310B.txt", (1, 1)),
        lambda: (folder / "version.cfg").write_text("Version=8.5.0\n"),
        lambda: monkeypatch.setattr(cache, "_SOURCES", ("cases.py",)),
        lambda: folder.rename(tmp_path / "elsewhere"),
    ]
    for change in changes:
        change()
        moved = folder if folder.exists() else tmp_path / "elsewhere"
        assert known(Toolkit(moved)) == []
        with pytest.raises(AssertionError, match="tried again"):
            tried(Toolkit(moved), 0, soc)
        assert known(toolkit) == []


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "\0", '{"soc": "x"}'),
        '{"soc": "x", "cann": "y", "verdicts": []}',
        '{"soc": "x", "cann": "y", "verdicts": {}}',
        '{"soc": "x", "cann": "y", "verdicts": {"Add f16": 3}}',
        '{"soc": 1, "cann": 2, "verdicts": {"Add f16": null}}',
        '{"soc": "x", "cann": "y", "verdicts": {"Add f16": null}}',  # not all
    ],
)
def test_a_broken_file(
    content: str, own: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as none, and its place is taken."""
    monkeypatch.setenv(SIMULATOR, "310B")
    good = parent.Tries(toolkit, 0, 1.0, soc="x", verdicts=dict.fromkeys(NAMES))
    monkeypatch.setattr(parent, "run", lambda *_, **__: good)
    expected = tried(toolkit, 0, "x")
    (path,) = own.iterdir()
    path.write_text(content)
    assert known(toolkit) == []
    assert tried(toolkit, 0, "x") == expected
    assert known(toolkit) == [expected]
    assert list(own.iterdir()) == [path]


def test_a_folder_that_cannot_be_written(
    tmp_path: Path,
    toolkit: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried each time, with a note."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(SIMULATOR, "310B")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    good = parent.Tries(toolkit, 0, 1.0, soc="x", verdicts={"Add f16": None})
    monkeypatch.setattr(parent, "run", lambda *_, **__: good)
    for _ in range(2):
        caplog.clear()
        assert tried(toolkit, 0, "x") is not None
        assert "cannot be kept" in caplog.text
        assert "XDG_CACHE_HOME" in caplog.text
    assert logging.WARNING in {record.levelno for record in caplog.records}


def umbel(*arguments: object, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "umbel", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env}
    )


def test_two_at_once(on: Callable[..., None], own: Path, toolkit: Toolkit) -> None:
    """Each tries; the file is one of them, whole."""
    on("310P")
    both = [umbel("cann", "probe", "--json") for _ in range(2)]
    told = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert told[0] == told[1]
    (found,) = known(toolkit)
    assert found.verdicts == told[0]["verdicts"]
    assert len(list(own.iterdir())) == 1


def test_the_table(on: Callable[..., None], own: Path) -> None:
    on("310B")
    process = umbel("cann", "probe")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    rows = {re.split(r"  +", line)[0]: line for line in out.splitlines()}
    assert rows["operator"].split()[1:4] == ["f16", "f32", "i32"]
    assert rows["Cast"].split() == ["Cast", "yes", "yes", "yes"]
    assert rows["Add"].split()[1:3] == ["yes", "no"]
    assert rows["Exp"].endswith("no kernel for it: ACLNN_ERR_INNER_NULLPTR (561103)")
    assert "Mm: 64 rows of 4224" in rows
    works = len(NAMES) - len(lacking("310B"))
    assert out.splitlines()[-1] == (
        f"Ascend310B4 (simulated), CANN 8.3.RC2: {works} of {len(NAMES)} probes work"
    )
    other = umbel("cann", "probe", "--device", "host")
    assert "this is no Ascend NPU" in other.communicate()[1]
    assert other.returncode == 2


def test_the_doctor(on: Callable[..., None], own: Path) -> None:
    """It tells what is known, quickly, and how to know it."""
    on("310B")
    out = umbel("doctor", "--device", "cann").communicate()[0]
    assert "was not tried yet: the first use of the chip does it, and `umbel cann probe`" in out
    assert not own.exists()
    umbel("cann", "probe", **{FAULT: "kernel=Mul"}).communicate()
    out = umbel("doctor", "--device", "cann").communicate()[0]
    assert "Ascend310B4 works with f16: Add, Addmm, Adds, " in out
    assert re.search(r"note +plugin cann +Ascend310B4 does not do f16: .*\(561103\)\)", out)
    assert re.search(r"warning +plugin cann +Ascend310B4 does not do f16: Mul.*561112\)\)", out)
    assert "install the kernels package of CANN for this chip" in out
    assert "then `umbel cann probe`" in out
    assert "chip 0 310B4: OK" in out
    assert "chip 0 310B4 has 6395 of 8192 MB free" in out


def test_the_first_use_and_the_next(on: Callable[..., None], own: Path) -> None:
    """The chip is tried once; what failed there runs another way, or elsewhere."""
    asked = ("run", STORY, "Once upon a time", "--temp", "0", "-n", "8")
    expected = umbel(*asked, "--device", "host").communicate()[0]
    for fault, told in (("", 1), ("", 0)):
        on("910B", fault)
        out, err = umbel(*asked, "--device", "cann:0").communicate()
        assert out == expected
        assert err.count("trying out") == told
    on("910B", "kernel=Mm,crash=Silu")
    shutil.rmtree(own)
    out, err = umbel(*asked, "--device", "cann:0").communicate()
    assert out == expected
    assert "does not run everything" in err
    plan = umbel("plan", STORY, "--device", "cann:0").communicate()[0]
    assert "aclnnMm" in plan
    assert "its kernel package is not installed" in plan


EMITTED = """
import umbel_cann.lowering as lowering
from umbel import plugins
from umbel.ops import OPS
from umbel_cann.probing.cases import probes
from umbel_cann.views import NAMES
from umbel_kit.cases import CASES
from umbel_kit.device import prepare, refusal

emitted, emit = set(), lowering.Lowering.emit
def noting(self, operator, *arguments):
    emit(self, operator, *arguments)
    emitted.add((operator, NAMES.get(lowering.first_type(arguments), "i64")))
lowering.Lowering.emit = noting
target = plugins.get().open(plugins.get().find("cann:0"))
for case in CASES:
    refusal(prepare(case, target, OPS), target)
known = {(p.operator, p.dtype) for p in probes()}
print(len(emitted), {(o, d) for o, d in emitted if d != "i64"} - known)
"""


@pytest.mark.parametrize("chip", CHIPS)
def test_all_that_is_used_is_tried(
    chip: str, on: Callable[..., None], tried_out: Callable[[str], None]
) -> None:
    """Every operator that can be called; with the dtypes that operations use it with."""
    assert set(OPERATORS) == {p.operator for p in NAMES.values()} - {"capture"}
    tried_out(chip)
    on(chip)
    command = [sys.executable, "-c", EMITTED]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    count, missing = done.stdout.strip().split(" ", 1)
    assert int(count) > 20
    assert missing == "set()"
