"""What happens around computing: loads and frees, forks, Ctrl-C, several models at once, more
threads than processors, little memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import umbel
from umbel.errors import CancelledError
from umbel.runner import Runner
from umbel.state import Sequence
from umbel_numa.library import FORCED

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's /proc")
STORY = "stories260K"


def whole(runner: Runner, ids: list[int]) -> np.ndarray:
    sequence = Sequence()
    made = runner.forward(sequence, ids, every=True)
    runner.cache.close(sequence)
    return made


def python(program: str, *arguments: object, **variables: str) -> str:
    """What a program prints that must end within minutes."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


LOADS = """
import gc, os, resource, sys, umbel
from umbel import plugins

def taken():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def use(times):
    for i in range(times):
        with umbel.load(sys.argv[1], "numa", ctx=64, threads=3) as model:
            model.logits([1, 5, 6])
        plugins.get().close()
    gc.collect()
    return taken(), len(os.listdir("/proc/self/task"))

use(100)  # until the heap has the size that it keeps
before, after = use(1), use(100)
print(after[0] - before[0], after[1] - before[1])
"""


@LINUX
def test_a_hundred_loads_leave_nothing(oracles) -> None:
    """A model takes over a megabyte: one in a hundred that stayed would be seen."""
    grown, threads = map(int, python(LOADS, oracles / f"{STORY}.gguf").split())
    assert threads == 0
    assert grown < 1 << 20


FORK = """
import os, signal, sys, umbel
model = umbel.load(sys.argv[1], "numa", ctx=64, threads=3)
expected = model.logits([1, 5, 6])
child = os.fork()
if not child:
    signal.alarm(30)
    same = (model.logits([1, 5, 6]) == expected).all()
    with umbel.load(sys.argv[1], "numa", ctx=64, threads=3) as other:
        same &= (other.logits([1, 5, 6]) == expected).all()
    os._exit(not same)
_, status = os.waitpid(child, 0)
print(status, (model.logits([1, 5, 6]) == expected).all())
"""


def test_a_forked_child_and_its_parent_both_compute(oracles) -> None:
    """The child with the model that it was given, and with one of its own."""
    path = oracles / f"{STORY}.gguf"
    assert python(FORK, path, PYTHONWARNINGS="ignore::DeprecationWarning") == "0 True"


def test_ctrl_c_in_a_prefill(oracles) -> None:
    """It ends within a fifth of a second, and the session is what it was."""
    ids = np.random.default_rng(3).integers(3, 500, 12000).tolist()
    waits = []
    with umbel.load(oracles / f"{STORY}.gguf", "numa", ctx=12288) as model:
        expected = model.logits(ids[:40])
        with model.open() as session:
            session.feed(ids[:20])
            for _ in range(3):
                pressed: list[float] = []

                def press(pressed: list[float] = pressed) -> None:
                    pressed.append(time.perf_counter())
                    os.kill(os.getpid(), signal.SIGINT)

                timer = threading.Timer(0.25, press)
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    session.feed(ids[20:])
                waits.append(time.perf_counter() - pressed[0])
                timer.join()
                assert session.tokens == ids[:20]
            np.testing.assert_array_equal(session.feed(ids[20:40]), expected[-1])
    assert min(waits) < 0.2


def test_cancelled_between_steps(load) -> None:
    """A step that is stopped anywhere changes nothing, and the next is right."""
    runner = load(STORY, ctx=512, threads=2)
    ids = np.random.default_rng(3).integers(3, 500, 500).tolist()
    expected = whole(runner, ids)
    engine = runner.targets[0].hooks
    sequence, stopped = Sequence(), 0
    runner.forward(sequence, ids[:3])
    for i in range(20):
        timer = threading.Timer(0.0002 * i, runner.stop.ask)
        timer.start()
        try:
            runner.forward(runner.cache.fork(sequence), ids[3:])
        except CancelledError:
            stopped += 1
        timer.join()
        runner.stop.asked = False
        engine.sync(None)
        assert sequence.tokens == ids[:3]
    assert stopped
    np.testing.assert_array_equal(runner.forward(sequence, ids[3:])[0], expected[-1])


def test_two_models_at_once(oracles) -> None:
    """Each from a thread of its own: the results that each gives alone."""
    names, wrong = (STORY, "llama"), []
    models = [umbel.load(oracles / f"{n}.gguf", "numa", ctx=128) for n in names]
    ids = np.random.default_rng(4).integers(3, 60, 50).tolist()
    expected = [model.logits(ids) for model in models]

    def work(i: int) -> None:
        for n in range(1, 40):
            if not np.array_equal(models[i].logits(ids[: n + 10]), expected[i][: n + 10]):
                wrong.append((i, n))

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        model.close()
    assert not wrong


CLOSING = """
import sys, threading, umbel, umbel_numa
from umbel import plugins
found, stop, wrong = plugins.get(), threading.Event(), []
device, hooks = found.find("numa"), found.backends["numa"]

def ask():
    try:
        while not stop.is_set():
            hooks.status(device)
            hooks.cancel(device)
    except Exception as error:
        wrong.append(error)

threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(20):
    with umbel.load(sys.argv[1], "numa", ctx=64, threads=1):
        engine = umbel_numa.opened()
    found.close()
    engine.cancel(True)
    assert engine.pinned == 0
stop.set()
for thread in threads:
    thread.join()
print(wrong)
"""


def test_status_and_cancel_beside_a_close(oracles) -> None:
    """They come from any thread at any time."""
    assert python(CLOSING, oracles / f"{STORY}.gguf") == "[]"


def test_more_threads_than_processors(load) -> None:
    """The same bits, beside a process that keeps a processor busy, without a collapse: sixteen
    threads for each processor take a few times the processor time of one."""
    most = 16 * (os.cpu_count() or 1)
    one, many = load(STORY, threads=1), load(STORY, threads=most)
    ids = np.random.default_rng(5).integers(3, 500, 40).tolist()
    expected, ratios = whole(one, ids), []
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for _ in range(3):
                used = []
                for runner in (one, many):
                    start = time.process_time()
                    np.testing.assert_array_equal(whole(runner, ids), expected)
                    used.append(time.process_time() - start)
                ratios.append(used[1] / used[0])
        finally:
            busy.kill()
    assert min(ratios) < 10


LITTLE = """
import logging, mmap, resource, sys, numpy as np
from umbel.gguf.types import BY_NAME
from umbel.graph import Role, Tensor
from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory
from umbel_numa.weights import tell

logging.basicConfig(format="%(message)s", stream=sys.stdout)
rows, engine = 1 << 14, Engine(2)
raw = np.frombuffer(mmap.mmap(-1, rows * 18 * 64), np.uint8).reshape(rows, -1)  # 18 MiB
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), resource.RLIM_INFINITY))
t = Tensor((rows, 2048), BY_NAME["q4_0"], Role.WEIGHT, "w")
weight = NativeMemory(engine, {"w"}).store(t, raw)
print(weight.packed(), weight.rows() == weight.handle)
tell([weight])
"""


@LINUX
def test_little_memory() -> None:
    """A weight that cannot be packed is used as it is, and a line says so."""
    state, told = python(LITTLE).splitlines()
    assert told.startswith("there is no memory to pack w: ")
    assert state == "0 True"


# the command


def umbel_command(*arguments: object, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "umbel", *map(str, arguments)]
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    return done.returncode, done.stderr


@pytest.mark.parametrize("given", ["numa.threads=-1", "numa.threads=abc", "numa.precise=1"])
def test_options_that_are_nonsense(oracles: Path, given: str) -> None:
    """One plain error."""
    path = oracles / f"{STORY}.gguf"
    code, told = umbel_command("run", path, "a", "-n", 1, "--device", "numa", "-O", given)
    assert (code, told.count("Traceback")) == (2, 0)
    assert given.partition("=")[0] in told


def test_kernels_that_are_nonsense(oracles: Path) -> None:
    path = oracles / f"{STORY}.gguf"
    for device in ("numa", "auto"):  # whoever forces kernels has named the device
        how = "run", path, "a", "-n", 1, "--device", device
        code, told = umbel_command(*how, **{FORCED: "foo"})
        assert (code, told.count("Traceback")) == (2, 0)
        assert "there are no kernels called 'foo'" in told
