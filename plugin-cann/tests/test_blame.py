"""Faults of simulated chips: what the error names, and what `-O cann.debug` shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ORACLES = HERE.parents[1] / "core/tests/data/oracles"
STORY = ORACLES / "stories260K.gguf"
CHIPS = ("310B", "310P", "910B")
Run = Callable[..., subprocess.CompletedProcess[str]]

START = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import logging, time
import numpy as np
from umbel import plugins
from umbel.errors import DeviceError
from umbel_cann import blame
from umbel_cann.program import Call
from umbel_cann.runtime import TO_DEVICE
import stepping
from stepping import counters, fault, open_model, programs, recorded, talk
lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("umbel.cann").addHandler(Lines())
one_by_one, graphs = blame.one_by_one, []
def again(launched, sent, again=blame.again):
    graphs[:] = [each.graph for each in launched]
    return again(launched, sent)
blame.again = again
def begin():
    sequence = stepping.Sequence()
    runner.forward(sequence, [1, 5, 9])
    for token in (3, 4, 7):  # made, recorded, replayed
        runner.decode([sequence], [token])
    return sequence
def step(sequence):
    try:
        runner.decode([sequence], [3])
    except DeviceError as error:
        fault("")
        return error
    raise SystemExit("no error")
def failing(text):
    "Faults, from when a step is run again."
    def faulty(program, npu, room):
        fault(text)
        return one_by_one(program, npu, room)
    blame.one_by_one = faulty
def of_a_step():
    return list(programs().made.values())[-1].launches
"""
END = """
runner.close()
plugins.get().close()
"""


def check(run: Run, chip: str, body: str, model: Path = STORY, **given: object) -> None:
    done = run(chip, "-c", START + body + END, model, **given)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


NAMED = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
sequence = begin()
chip = programs().npu.soc
assert bool(recorded()) == chip.startswith("Ascend910B")
launches = of_a_step()
copies = [n for n, launch in enumerate(launches, 1) if not isinstance(launch, Call)]
assert bool(copies) == chip.startswith("Ascend310B"), (chip, copies)
for n in (1, 2, *range(9, len(launches), 31), *copies[:2], len(launches)):
    failing(f"task={n}")
    fault(f"task={n}")
    error, launch = step(sequence), launches[n - 1]
    what = f"aclnn{launch.operator}" if n not in copies else "copies of rows f16 [1, 32]"
    node = f"{launch.node.label} ({launch.node.op.name})"
    begins = f"launch {n} of {len(launches)} on cann:0: {node}: {what}"
    assert error.where.startswith(begins), (error.where, begins)
    assert "(507015)" in error.what and "run again" not in error.got, error
    assert "report this" in error.do, error
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


@pytest.mark.parametrize("chip", CHIPS)
def test_a_launch_that_fails_is_named(run: Run, chip: str) -> None:
    """Whether it is an operator, recorded or not, or a copy of rows."""
    check(run, chip, NAMED)


ONCE = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
sequence = begin()
def results():
    (graph,) = graphs
    slots = graph.slots
    found = [(slots[t.storage], t.storage.nbytes) for t in graph.outputs]
    return [s.buffer.read(s.offset, min(n, s.buffer.nbytes)) for s, n in found]
calls = sum(isinstance(launch, Call) for launch in of_a_step())
for n in (3, 40):
    before = counters()
    fault(f"task={n}")
    error = step(sequence)
    assert error.where.endswith("it did not fail when it was run again, launch by launch")
    assert f", {len(of_a_step())} launches on cann:0; " in error.where, error
    assert error.do.endswith("-O cann.debug=sync names the node"), error
    spent = counters()["launches"] - before["launches"]
    assert spent == (calls if recorded() else 2 * calls), (spent, calls)
    found = results()
    runner.decode([sequence], [3])
    good = results()
    assert all((a == b).all() for a, b in zip(found, good)) and len(found) > 4
    runner.cache.close(sequence)
    sequence = begin()
assert sum("is run again to see what failed" in line for line in lines) == 2, lines
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


@pytest.mark.parametrize("model", ["stories260K", "gemma3", "gpt2", "qwen3"])
@pytest.mark.parametrize("chip", CHIPS)
def test_a_step_that_is_run_again_is_the_same(run: Run, chip: str, model: str) -> None:
    """Results and states, to the last bit, where nothing fails the second time."""
    check(run, chip, ONCE, ORACLES / f"{model}.gguf")


REFUSED = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
sequence = begin()
if "llama" in sys.argv[1]:
    blame.again = lambda launched, sent: again(launched, {})
    why = "; it cannot be run again: its input tokens is overwritten"
else:
    why = "; it cannot be run again: it changes conv.0, which it reads before"
fault("task=20")
before = counters()["launches"]
error = step(sequence)
assert error.where.endswith(why), error
assert counters()["launches"] - before <= len(of_a_step()) and not lines
runner.cache.close(sequence)
sequence, npu, blame.again = begin(), programs().npu, again
tell, place = npu.on_fault, of_a_step()[0].arguments[-1].start
def late(*given):
    npu.put(place, np.zeros(4, np.uint8), None)
    tell(*given)
npu.on_fault = late
fault("task=20")
error = step(sequence)
if "llama" in sys.argv[1]:
    assert error.where.endswith("run again: what comes next has its inputs already"), error
assert "; it cannot be run again: " in error.where and not lines, error
npu.on_fault = tell
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


@pytest.mark.parametrize("model", ["llama", "mamba2"])
@pytest.mark.parametrize("chip", CHIPS)
def test_what_must_not_be_run_again(run: Run, chip: str, model: str) -> None:
    """A state that is read and then changed; inputs that are gone."""
    check(run, chip, REFUSED, ORACLES / f"{model}.gguf")


HANGS = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
sequence, npu = begin(), programs().npu
count = len(of_a_step())
npu.timeout = 1
fault("hang=30")
error = step(sequence)
assert "(507046)" in error.what and not lines, error
first, last = of_a_step()[0].node, of_a_step()[-1].node
span = f"{blame.name(first)} to {blame.name(last)}, {count} launches on cann:0"
assert error.where == span, error
assert error.got.startswith("launched 1.") and " s ago; " in error.got, error
assert error.expected == "an end within 1 s" and "cann.timeout" in error.do, error
fault("task=30")
failing("hang=30")
error = step(sequence)
assert error.where.startswith(f"launch 30 of {count} "), error
assert "(507015)" in error.what and "run again: waiting" in error.got, error
assert "(507046)" in error.got, error
npu.timeout = 20
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


@pytest.mark.parametrize("chip", ["310B", "910B"])
def test_what_hangs(run: Run, chip: str) -> None:
    """What was running, how much of it, and for how long; also if it hangs the second time."""
    check(run, chip, HANGS, leaks=True)  # what hung stays with the simulator


ENDS = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
sequence, npu = begin(), programs().npu
def slow(program, npu, room):
    for found in one_by_one(program, npu, room):
        time.sleep(0.1)
        yield found
def cancelled(program, npu, room):
    for found in one_by_one(program, npu, room):
        npu.cancelled = True
        yield found
def refused(program, npu, room):
    npu.busy = True
    raise DeviceError("as a launch might be")
    yield
for how, told in (
    (slow, "it did not fail again before the time was over"),
    (cancelled, "it was cancelled while it was run again"),
    (refused, "it cannot be run again: as a launch might be"),
):
    blame.one_by_one, npu.timeout = how, 1
    fault("task=30")
    error = step(sequence)
    assert "(507015)" in error.what and error.where.endswith("; " + told), error
    assert not npu.cancelled and not npu.busy
    npu.timeout = 20
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


def test_running_it_again_ends(run: Run) -> None:
    """After the time of a step, when a user wants it, or when nothing can be launched."""
    check(run, "310P", ENDS)


# the option


def story(
    run: Run, debug: str, chip: str = "910B", **given: object
) -> subprocess.CompletedProcess[str]:
    asked = ("run", STORY, "Once upon a time", "--temp", "0", "-n", "4", "--device", "cann:0")
    return run(chip, "-m", "umbel", *asked, "-O", f"cann.debug={debug}", **given)


SYNC = """
runner = open_model(sys.argv[1], debug="sync")
expected = talk(runner, 6)
sequence = begin()
assert recorded() == 0 and not lines
launches = of_a_step()
fault("task=40")
error = step(sequence)
assert error.where.startswith(f"launch 40 of {len(launches)} on cann:0: "), error
assert f": aclnn{launches[39].operator} f16 [" in error.where, error
assert "(507015)" in error.what and not lines, (error, lines)
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
"""


@pytest.mark.parametrize("chip", ["310B", "310P"])
def test_sync(run: Run, chip: str) -> None:
    """What fails is named at once, and nothing is run again."""
    check(run, chip, SYNC)


FOUND = """
runner = open_model(sys.argv[1], debug="dump")
sequence = begin()
(at,) = [i for i, x in enumerate(of_a_step(), 1) if x.node.label == "blk.2.attn_q"]
weight, npu = of_a_step()[at - 1].arguments[1], programs().npu
assert sum("values that are not finite" in line for line in lines) == 0
broken = np.full(8, 0x7e00, np.uint16)
npu.copy(weight.start, broken.ctypes.data, broken.nbytes, TO_DEVICE)
lines.clear()
runner.decode([sequence], [3])
(line,) = lines
begins = f"values that are not finite, first at [0, 0]: launch {at} of {len(of_a_step())} on "
assert line.startswith(begins) and "blk.2.attn_q (mul_mat): aclnnMm f16" in line, line
runner.cache.close(sequence)
"""


@pytest.mark.parametrize("chip", ["310B", "310P"])
def test_values_that_are_not_finite(run: Run, chip: str) -> None:
    """The launch that made them; what comes of them is not told."""
    check(run, chip, FOUND)


@pytest.mark.parametrize("chip", CHIPS)
def test_log(run: Run, chip: str) -> None:
    """A line for each launch: its place, node, operator, tensors, time."""
    done = story(run, "log", chip)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(", there was a"), done.stdout
    form = r"launched and done in \d+ us: launch (\d+) of (\d+) on cann:0: (.*?): (.*)"
    found = re.findall(form, done.stderr)
    assert "not finite" not in done.stderr
    assert "where it lies" not in done.stderr
    steps = [i for i, (n, _, _, _) in enumerate(found) if n == "1"]
    assert len(steps) == 4
    for begin, end in zip(steps, [*steps[1:], len(found)], strict=True):
        count = int(found[begin][1])
        assert [int(n) for n, _, _, _ in found[begin:end]] == list(range(1, count + 1))
    (embedding, *_) = found
    assert embedding[2] == "get_rows (get_rows)"
    value = "f32" if chip == "910B" else "f16"
    form = rf"aclnn\w+ \w+ \[512, 64\], i32 \[5\], {value} \[5, 64\]"
    assert re.fullmatch(form, embedding[3])


@pytest.mark.parametrize("chip", CHIPS)
def test_dump(run: Run, chip: str) -> None:
    """Each split once: nodes, launches, and where everything lies."""
    done = story(run, "dump", chip)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(", there was a"), done.stdout
    form = r"it lies: split \d+: (\d+) nodes, (\d+) launches\n"
    form += r"scratch: (\d+) bytes for one node, (\d+) that last longer\n"
    heads = re.findall(form, done.stderr)
    assert len(heads) == 2  # the prompt's, and of all steps one
    assert all(int(n) for _, _, n, _ in heads)
    numbers = [int(n) for n in re.findall(r"^  (\d+): \w", done.stderr, re.M)]
    assert numbers == [i for _, n, _, _ in heads for i in range(1, int(n) + 1)]
    value = "f32" if chip == "910B" else "f16"
    for form in (
        rf"^rms_norm \(rms_norm\): {value} \[5, 64\] at compute\+\d+$",
        r"^  \d+: aclnn\w+ .* \[64, 64\] by \[1, 64\] at blk.0.attn_q.weight\+0, ",
        r"\(set_rows\): f16 \[640, 32\] at k_cache.0\+0$",
        r" at compute\+\d+, within another$",
    ):
        assert re.search(form, done.stderr, re.M), form
    assert " at scratch+" in done.stderr
    assert "launched and done" not in done.stderr


def test_several_at_once(run: Run) -> None:
    done = story(run, "dump,log")
    assert "launched and done in" in done.stderr
    assert "what is launched, and where it lies: split" in done.stderr


@pytest.mark.parametrize("text", ["loud", "sync,loud", "Log"])
def test_no_such_mode(run: Run, text: str) -> None:
    done = story(run, text, leaks=True)
    assert done.returncode != 0
    assert f"the option cann.debug cannot be '{text}'" in done.stderr
    assert "sync, log or dump" in done.stderr


VENDOR = """
import os, sys, umbel
from umbel_cann import acl
find = acl.Acl.find
def spied(self, name):
    if name == "aclInit":
        names = ("GLOBAL_LOG_LEVEL", "SLOG_PRINT_TO_STDOUT")
        print("set:", [os.environ.get(f"ASCEND_{n}") for n in names], file=sys.stderr)
    return find(self, name)
acl.Acl.find = spied
if len(sys.argv) > 3:
    os.environ["ASCEND_GLOBAL_LOG_LEVEL"] = sys.argv[3]
umbel.load(sys.argv[1], device="cann:0", options={"cann": {"debug": sys.argv[2]}}).close()
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("log",), ["2", "1"]),
        (("log", "0"), ["0", "1"]),  # the user's own stays
        (("sync,dump",), [None, None]),
        (("off",), [None, None]),
    ],
)
def test_the_libraries_log(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    expected: list[str | None],
) -> None:
    """It is asked for before they are initialised."""
    for name in ("GLOBAL_LOG_LEVEL", "SLOG_PRINT_TO_STDOUT"):
        monkeypatch.delenv(f"ASCEND_{name}", raising=False)
    done = run("310P", "-c", VENDOR, STORY, *given)
    assert done.returncode == 0, done.stderr
    assert f"set: {expected}\n" in done.stderr
