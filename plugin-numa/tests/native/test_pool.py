"""The threads: who takes part, where they sit, that they sleep, and what a fork leaves."""

import ctypes
import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src/umbel_numa/native"
RUNTIME = tuple(NATIVE / name for name in ("pool.c", "barrier.c", "pages.c"))
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's /proc")


class Pool:
    """A pool of the library, driven from Python."""

    def __init__(self, library, nodes, cpus=None):
        cpus = cpus or [-1] * len(nodes)
        array = ctypes.c_int * len(nodes)
        self.library = library
        self.handle = library.un_pool_new(len(nodes), array(*cpus), array(*nodes))
        self.error = ctypes.get_errno()
        self.pool = ctypes.c_void_p(self.handle)

    def run(self, threads, work):
        return self.library.un_pool_run(self.pool, threads, WORK(lambda _, t: work(t)), None)

    def ask(self, name, *arguments):
        return getattr(self.library, f"un_pool_{name}")(self.pool, *arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ask("free")


def tasks():
    return {int(task) for task in os.listdir("/proc/self/task")}


def test_every_thread_runs_once(library):
    with Pool(library, [0] * 8) as pool:
        for threads in (8, 3, 1, 5, 8):
            ran = []
            assert pool.run(threads, ran.append) == 0
            assert sorted(ran) == list(range(threads))


def test_number_0_is_the_caller(library):
    callers = []
    with Pool(library, [0, 0]) as pool:
        pool.run(2, lambda t: callers.append((t, ctypes.CDLL(None).pthread_self())))

    assert dict(callers)[0] == ctypes.CDLL(None).pthread_self() != dict(callers)[1]


@pytest.mark.parametrize(
    ("nodes", "threads", "belongs"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], 8, [0, 0, 0, 0, 1, 1, 1, 1]),
        ([0, 0, 0, 0, 1, 1, 1, 1], 4, [0, 0, 1, 1]),
        ([0, 0, 0, 0, 1, 1, 1, 1], 3, [0, 0, 1]),
        ([0, 0, 0, 0, 1, 1, 1, 1], 1, [0]),
        ([0, 1, 2, 3], 2, [0, 1]),
        ([0, 1, 1, 1, 1], 4, [0, 1, 1, 1]),
        ([0, 0, 0, 0, 1], 3, [0, 0, 1]),
    ],
)
def test_those_taking_part_are_dealt_over_the_nodes(library, nodes, threads, belongs):
    sizes = (ctypes.c_int * (max(nodes) + 1))()
    with Pool(library, nodes) as pool:
        assert pool.run(threads, lambda _: None) == 0
        used = max(belongs) + 1

        assert pool.ask("nodes") == used
        assert [pool.ask("node", t) for t in range(threads)] == belongs
        assert [pool.ask("node_size", n) for n in range(used)] == [
            belongs.count(n) for n in range(used)
        ]
        assert [pool.ask("node_rank", t) for t in range(threads)] == [
            belongs[:t].count(belongs[t]) for t in range(threads)
        ]
        assert pool.ask("shares", threads, sizes) == used
        assert sizes[:used] == [belongs.count(n) for n in range(used)]


@pytest.mark.parametrize("nodes", [[1], [0, 2], [0, 1, 0], [0, -1]])
def test_numbers_of_nodes_with_gaps_are_refused(library, nodes):
    pool = Pool(library, nodes)

    assert (pool.handle, pool.error) == (None, errno.EINVAL)


@pytest.mark.parametrize("threads", [0, -1, 3])
def test_a_number_of_threads_that_is_not_there_is_refused(library, threads):
    with Pool(library, [0, 0]) as pool:
        assert pool.run(threads, lambda _: None) == -errno.EINVAL


@LINUX
def test_pinned_to_the_cpus_asked_for_and_the_caller_only_meanwhile(library):
    before = os.sched_getaffinity(0)
    cpus = [min(before), max(before)]
    seen = {}
    with Pool(library, [0, 0], cpus) as pool:
        pool.run(2, lambda t: seen.update({t: os.sched_getaffinity(0)}))

        assert pool.ask("pinned") == 2
    assert seen == {0: {cpus[0]}, 1: {cpus[1]}}
    assert os.sched_getaffinity(0) == before


def test_a_cpu_that_is_refused_leaves_its_thread_unpinned(library):
    ran = []
    with Pool(library, [0, 0], [8191, 1 << 20]) as pool:
        assert pool.run(2, ran.append) == 0

        assert pool.ask("pinned") == 0
    assert sorted(ran) == [0, 1]


@LINUX
def test_signals_are_left_to_other_threads_but_faults_are_not(library):
    before = tasks()
    with Pool(library, [0, 0]) as pool:
        pool.run(2, lambda _: None)  # while a thread begins, the C library blocks all
        (worker,) = tasks() - before
        status = Path(f"/proc/self/task/{worker}/status").read_text()
        blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)

    def blocks(signal):
        return bool(blocked >> (signal - 1) & 1)

    assert all(blocks(signal) for signal in (2, 1, 10, 14, 15, 17))  # INT, HUP, USR1, ALRM ...
    assert not any(blocks(signal) for signal in (4, 7, 8, 11))  # ILL, BUS, FPE, SEGV


@LINUX
def test_threads_end_with_their_pool(library):
    before = tasks()
    for _ in range(100):
        with Pool(library, [0, 0, 1, 1]) as pool:
            pool.run(4, lambda _: None)
            assert len(tasks()) == len(before) + 3

    assert tasks() == before


@pytest.mark.parametrize("flags", [(), ("-U__linux__",)], ids=["futex", "without futex"])
@pytest.mark.parametrize(("threads", "nodes"), [(1, 1), (2, 2), (7, 3), (24, 2)])
def test_runs_of_changing_size(build, run, threads, nodes, flags):
    run(build(HERE / "runs.c", *RUNTIME, *flags), threads, nodes, 500)


def test_thread_sanitizer_finds_no_race(build, run, thread_sanitizer):
    run(build(HERE / "runs.c", *RUNTIME, thread_sanitizer), 7, 3, 200)


def test_between_runs_everybody_sleeps(library):
    with Pool(library, [0] * 4) as pool:
        pool.run(4, lambda _: None)
        time.sleep(0.05)
        start, used = time.perf_counter(), time.process_time()
        time.sleep(0.2)

        assert time.process_time() - used < 0.1 * (time.perf_counter() - start)


def test_a_forked_child_and_its_parent_both_go_on(build, run):
    run(build(HERE / "fork.c", *RUNTIME))


@pytest.mark.parametrize("threads", [2, 8])
def test_beside_busy_processes_no_time_is_lost_to_spinning(build, run, threads):
    """The processor time of a piece of work hardly grows where threads lack processors: it
    grows tenfold where they spin for each other."""
    program = build(HERE / "crowd.c", *RUNTIME)
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(os.cpu_count())]
    try:
        ratios = [float(run(program, threads)) for _ in range(3)]
    finally:
        for process in busy:
            process.kill()
            process.wait()

    assert min(ratios) < 2.5
