"""In a container whose filter lets no NUMA calls through, everything goes on."""

import ctypes
import errno
import os
import re
from pathlib import Path

import pytest
from inside import NUMA_CALLS, SCHED_SETAFFINITY, WORK, in_child, refuse
from umbel_numa import topology


def test_memory_stays_where_it_is(machine, memory):
    def place():
        touched = memory(1 << 20)
        touched.fill()
        refuse(NUMA_CALLS)
        return touched.bind(1), touched.move(1), touched.holds()

    assert in_child(place) == (-errno.EPERM, -errno.EPERM, True)


def test_without_any_capability_memory_is_placed_all_the_same(machine, memory):
    """As in a container without rights whose filter lets the calls through."""

    def place():
        touched = memory(1 << 20)
        touched.fill()
        os.setuid(65534)
        status = Path("/proc/self/status").read_text()
        rights = re.findall(r"Cap(?:Eff|Prm):\s*(\w+)", status)
        return rights, touched.move(1), list(touched.where()), touched.bind(0), touched.where()

    none, pages = "0" * 16, (1 << 20) // os.sysconf("SC_PAGESIZE")
    assert in_child(place) == ([none, none], 0, [1], 0, {0: pages})


def test_the_machine_is_read_all_the_same(machine):
    def read():
        refuse(NUMA_CALLS)
        return topology.plan(topology.read())

    assert in_child(read) == topology.plan(topology.read())


@pytest.mark.parametrize(
    ("calls", "pinned"), [(NUMA_CALLS, 4), (SCHED_SETAFFINITY, 0)], ids=["memory", "threads"]
)
def test_threads_run_pinned_where_they_may_be(machine, native, calls, pinned):
    def run():
        refuse(calls)
        threads = topology.plan(topology.read())
        array = ctypes.c_int * len(threads.cpus)
        pool = native.un_pool_new(4, array(*threads.cpus), array(*threads.nodes))
        ran = []
        assert (
            native.un_pool_run(pool, 4, WORK(lambda _, thread: ran.append(thread)), None) == 0
        )
        return sorted(ran), native.un_pool_pinned(pool)

    assert os.cpu_count() == 4
    assert in_child(run) == ([0, 1, 2, 3], pinned)
