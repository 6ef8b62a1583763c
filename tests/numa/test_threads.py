"""Threads sit on their CPUs, neighbours on one node; little of a barrier crosses nodes."""

import ctypes
import os

import pytest
from inside import WORK, here, where
from umbel_numa import topology

ROUNDS = 300


@pytest.fixture
def pool(machine):
    """pool(library, threads): all that a plan has; freed in the end."""
    made = []

    def make(library, threads):
        array = ctypes.c_int * len(threads.cpus)
        new = library.un_pool_new(
            len(threads.cpus), array(*threads.cpus), array(*threads.nodes)
        )
        assert new
        made.append((library, new))
        return new

    yield make
    for library, one in made:
        library.un_pool_free(one)


def seats(native, pool, count):
    """The CPU and the node of each thread of a run."""
    seen = {}
    work = WORK(lambda _, thread: seen.update({thread: here()}))
    assert native.un_pool_run(pool, count, work, None) == 0
    return [seen[thread] for thread in range(count)]


def node_of(machine, cpu):
    return next(n for n, node in enumerate(machine.nodes) if cpu in node.cpus)


def test_threads_sit_on_their_cpus(machine, native, pool):
    threads = topology.plan(topology.read())
    made = pool(native, threads)
    before = os.sched_getaffinity(0)

    expected = [(cpu, node_of(machine, cpu)) for cpu in threads.cpus]
    assert seats(native, made, len(threads.cpus)) == expected
    assert native.un_pool_pinned(made) == len(threads.cpus)
    assert os.sched_getaffinity(0) == before


def test_fewer_threads_are_dealt_over_the_nodes(machine, native, pool):
    """They are numbered node by node, and each sits on a CPU of the node it belongs to."""
    threads = topology.plan(topology.read())
    made = pool(native, threads)
    groups = list(machine.threads.values())
    for count in range(1, len(threads.cpus) + 1):
        sat = seats(native, made, count)
        belongs = [native.un_pool_node(made, thread) for thread in range(count)]

        assert belongs == sorted(belongs)
        assert set(belongs) == set(range(min(count, len(groups))))
        assert all(cpu in groups[n] for (cpu, _), n in zip(sat, belongs, strict=True))


def test_one_operation_of_each_node_crosses_in_a_barrier(machine, counting, pool):
    """Beside those of threads that fall asleep, which call the system anyway."""
    threads = topology.plan(topology.read())
    naps = ctypes.c_int64()
    crossed = counting.count_crossings(pool(counting, threads), ROUNDS, ctypes.byref(naps))

    assert crossed == ROUNDS * len(machine.threads)
    assert 0 <= naps.value <= crossed


def test_where_the_threads_of_a_node_meet_is_memory_of_the_node(machine, counting, pool):
    made = pool(counting, topology.plan(topology.read()))
    for n, number in enumerate(machine.threads):
        address = counting.where_node_meets(made, n)
        assert where(counting, address, 1, len(machine.nodes)) == {number: 1}


def test_time_of_a_barrier_of_two_levels_and_of_one(machine, native):
    threads = topology.plan(topology.read())
    array = ctypes.c_int * len(threads.cpus)
    for flat in (0, 1):
        cpus, nodes = array(*threads.cpus), array(*threads.nodes)
        assert native.un_barrier_time(len(threads.cpus), cpus, nodes, flat, ROUNDS) > 0
