"""Recorded splits: on a simulated chip, each in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STORY = HERE.parents[1] / "core/tests/data/oracles/stories260K.gguf"
Run = Callable[..., subprocess.CompletedProcess[str]]

START = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np, umbel_cann
from umbel import plugins
from umbel.errors import CancelledError, DeviceError, UmbelError
from umbel_cann import capture, compile, program
import stepping
from stepping import counters, fault, open_model, programs, recorded, talk
ended = []
def drop(self, npu, drop=capture.Recording.drop):
    ended.append(self.model)
    drop(self, npu)
made = []
def record(*given, record=capture.record):
    found = record(*given)
    made.extend([found.model] if found else [])
    return found
capture.Recording.drop, program.record = drop, record
"""
END = """
runner.close()
plugins.get().close()
assert sorted(made) == sorted(ended), (made, ended)
"""


def check(run: Run, body: str, chip: str = "910B", **given: object) -> None:
    done = run(chip, "-c", START + body + END, STORY, **given)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


SAME = """
runner = open_model(sys.argv[1])
stepping.capture(False)
plain = [talk(runner, 40), talk(runner, 20, others=2)]
assert recorded() == 0 and "replays" not in counters()
runner.close()
stepping.capture(True)
runner, other = open_model(sys.argv[1]), open_model(sys.argv[1])
for model in (runner, other, runner):
    found = [talk(model, 40), talk(model, 20, others=2)]
    assert all((a == b).all() for a, b in zip(plain, found))
assert recorded() >= 4
before = counters()
talk(runner, 8)
after = counters()
assert after["replays"] - before["replays"] >= 8
assert after["launches"] == before["launches"], (before, after)
other.close()
"""


def test_a_replay_is_the_same_to_the_last_bit(run: Run) -> None:
    """Over many steps with inputs that change, for several sequences, and for two models that
    take turns on one device."""
    check(run, SAME)


OLDEST = """
compile.MOST, some = 5, (3, 2, 1, 0)  # with the prompt's these are as many as there is room for
runner = open_model(sys.argv[1])
all_kept = [talk(runner, 6, others=n) for n in some]
assert recorded() == 5
runner.close()
made.clear()
ended.clear()
compile.MOST = 2
runner = open_model(sys.argv[1])
first = [talk(runner, 6, others=n) for n in some]
assert recorded() == 2 and len(made) >= 4 and len(ended) == len(made) - 2, (made, ended)
again = [talk(runner, 6, others=n) for n in some]
assert recorded() == 2
assert all((a == b).all() and (a == c).all() for a, b, c in zip(first, again, all_kept))
uid, _ = next(key for key, p in programs().made.items() if p.recording)
programs().forget(uid)
assert recorded() == 1
"""


def test_the_recording_that_was_not_used_for_longest_goes(run: Run) -> None:
    check(run, OLDEST)


EXECUTORS = """
compile.EXECUTORS = 200
runner = open_model(sys.argv[1])
first = [talk(runner, 6, others=n) for n in range(3)]
assert recorded() == 1
assert all((talk(runner, 6, others=n) == first[n]).all() for n in range(3))
"""


def test_executors_go_with_what_recorded_them(run: Run) -> None:
    check(run, EXECUTORS)


FAULTS = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
npu = programs().npu
npu.timeout = 1
for text, code in (("task=3", 507015), ("task=40", 507015), ("hang=20", 507046)):
    assert recorded() >= 1
    sequence = stepping.Sequence()
    runner.forward(sequence, [1, 5, 9])
    runner.decode([sequence], [3])
    fault(text)
    try:
        runner.decode([sequence], [3])
    except DeviceError as error:
        assert f"({code})" in error.what and " on cann:0" in error.what, error
    else:
        raise SystemExit("no error")
    fault("")
    runner.cache.close(sequence)
    npu.timeout = 20
    assert (talk(runner, 6) == expected).all()
    recordings = [p.recording for p in programs().made.values() if p.recording]
    assert all(r.stream == npu.stream for r in recordings)  # not of one that hung
    npu.timeout = 1
"""


def test_a_fault_within_a_recording(run: Run) -> None:
    """One typed error, whether a task fails or hangs; the next step works."""
    check(run, FAULTS, leaks=True)  # what hung stays with the simulator


CANCELLED = """
runner = open_model(sys.argv[1])
expected = talk(runner, 6)
replay = program.Program._replay
def cancelled(self, npu, recording):
    runner.stop.ask()
    replay(self, npu, recording)
sequence = stepping.Sequence()
runner.forward(sequence, [1, 5, 9])
runner.decode([sequence], [3])
program.Program._replay = cancelled
try:
    runner.decode([sequence], [3])
except CancelledError:
    pass
else:
    raise SystemExit("nobody heard it")
program.Program._replay = replay
runner.stop = type(runner.stop)()
runner.cache.close(sequence)
assert (talk(runner, 6) == expected).all()
npu = programs().npu
npu.cancelled = True
(p,) = [p for p in programs().made.values() if p.recording][-1:]
replays = counters()["replays"]
try:
    p.run(npu, programs().workspace)
except CancelledError:
    npu.cancelled = False
assert not npu.cancelled and counters()["replays"] == replays
"""


def test_cancelled(run: Run) -> None:
    """Before a recording is run, and while it runs."""
    check(run, CANCELLED)


BROKEN = """
import logging
lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("umbel.cann").addHandler(Lines())
logging.getLogger("umbel.cann").setLevel(logging.DEBUG)
again = program.Program._again
runner = open_model(sys.argv[1])
expected = talk(runner, 2)
def waits(self, npu, workspace):
    again(self, npu, workspace)
    npu.acl.call("aclrtSynchronizeStream", npu.stream)
def refused(self, npu, workspace):
    raise DeviceError("as a launch might be")
for broken, told in ((waits, "107027"), (refused, "as a launch might be")):
    runner.close()
    runner = open_model(sys.argv[1])
    lines.clear()
    talk(runner, 1)
    program.Program._again = broken
    for p in programs().made.values():
        if p.to_record:
            try:
                p._record(programs().npu, programs().workspace)
            except DeviceError as error:
                raise SystemExit(error)
    program.Program._again = again
    shown = [p for p in programs().made.values() if not p.recordable]
    assert shown and len(lines) == len(shown), lines
    assert all(told in line and "not captured" in line for line in lines), lines
    assert recorded() == 0
    assert (talk(runner, 2) == expected).all()
    assert programs().npu.acl.recent() is None
"""


def test_a_capture_that_fails(run: Run) -> None:
    """It is ended and remembered, and the split goes on launch by launch."""
    check(run, BROKEN)


NEVER = """
runner = open_model(sys.argv[1])
first = talk(runner, 6)
assert recorded() == 0 and not made and programs().npu.acl.recent() is None
"""


@pytest.mark.parametrize(
    ("chip", "fault"), [("310B", ""), ("310P", ""), ("910B", "symbol=aclmdlRICaptureEnd")]
)
def test_where_there_is_no_capture(run: Run, chip: str, fault: str) -> None:
    check(run, NEVER, chip, **({"fault": fault} if fault else {}))
