"""The barrier of two levels: nobody passes early, nobody stays behind, little crosses nodes."""

import ctypes
import errno
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src/umbel_numa/native"
STRESS = (HERE / "stress.c", NATIVE / "pool.c", NATIVE / "pages.c")
NEVER_SLEEPS = ("-DUN_SPIN_MIN=1000000000000", "-DUN_SPIN_MAX=1000000000000")
SOON_SLEEPS = ("-DUN_SPIN_MIN=1", "-DUN_SPIN_MAX=2")
CONDITIONS = ("-U__linux__",)  # sleeps as on other systems
SHAPES = [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 2), (5, 3), (8, 1), (8, 4)]


@pytest.mark.parametrize(
    "flags", [(), SOON_SLEEPS, CONDITIONS], ids=["spins", "sleeps", "without futex"]
)
@pytest.mark.parametrize(("threads", "nodes"), SHAPES)
def test_everybody_sees_what_all_wrote_before(build, run, threads, nodes, flags):
    run(build(*STRESS, *flags), threads, nodes, 2000)


@pytest.mark.parametrize(("threads", "nodes"), [(2, 1), (2, 2), (5, 3)])
def test_counters_may_wrap(build, run, threads, nodes):
    run(build(*STRESS), threads, nodes, 500, 2**31 - 300)


@pytest.mark.parametrize(("threads", "nodes"), [(2, 1), (2, 2), (3, 3), (8, 2), (8, 4)])
def test_one_operation_of_each_node_crosses(build, run, threads, nodes):
    """Those that fall asleep add one each; a call of the system follows theirs anyway."""
    rounds = 500
    arrivals, naps = map(int, run(build(*STRESS, "-DUN_COUNT"), threads, nodes, rounds).split())

    assert arrivals == (2 * rounds * nodes if nodes > 1 else 0)
    assert nodes > 1 or naps == 0


def test_nothing_else_crosses_while_nobody_sleeps(build, run):
    program = build(*STRESS, "-DUN_COUNT", *NEVER_SLEEPS)

    assert run(program, 2, 2, 100).split() == ["400", "0"]


@pytest.mark.parametrize(("threads", "nodes"), [(2, 1), (2, 2), (4, 2), (3, 3)])
def test_thread_sanitizer_finds_no_race(build, run, thread_sanitizer, threads, nodes):
    run(build(*STRESS, thread_sanitizer), threads, nodes, 500)


@pytest.mark.parametrize("order", ["ACQ_REL", "ACQUIRE"])
def test_thread_sanitizer_finds_an_order_that_is_left_out(build, thread_sanitizer, order):
    relaxed = (f"-D__ATOMIC_{order}=__ATOMIC_RELAXED", "-Wno-error")
    stress = [build(*STRESS, thread_sanitizer, *relaxed), "4", "2", "500"]
    done = subprocess.run(stress, capture_output=True, text=True)

    assert "data race" in done.stderr


@pytest.mark.parametrize("flat", [0, 1])
def test_time_per_call(library, flat):
    cpus, nodes = (ctypes.c_int * 2)(-1, -1), (ctypes.c_int * 2)(0, 1)

    assert library.un_barrier_time(2, cpus, nodes, flat, 100) > 0


def test_time_refuses_no_threads(library):
    assert library.un_barrier_time(0, None, None, 0, 100) == -errno.EINVAL
