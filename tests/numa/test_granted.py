"""What taskset and cgroups granted is taken, and no more."""

import errno
import itertools
import os
from pathlib import Path

import pytest
from inside import in_child, running_on
from umbel_numa import topology

CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count()


@pytest.fixture
def limited(machine):
    """limited(work, **files): what `work` returns in a cgroup with these settings."""
    made = []

    def run(work, **files):
        (CGROUPS / "cgroup.subtree_control").write_text("+cpuset +cpu")
        group = CGROUPS / f"test{next(_numbers)}"
        group.mkdir()
        made.append(group)
        for name, text in files.items():
            (group / name.replace("_", ".")).write_text(text)

        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return work()

        return in_child(enter)

    yield run
    for group in made:
        group.rmdir()


def test_affinity_of_one_node(machine):
    for number, cpus in machine.threads.items():
        with running_on(cpus):
            threads = topology.plan(topology.read())
        assert threads.numbers == (number,)
        assert len(threads.cpus) == len(cpus)


def test_affinity_of_a_part_of_each_node(machine):
    some = {cpus[-1] for cpus in machine.threads.values()}
    with running_on(some):
        threads = topology.plan(topology.read())

    assert threads.cpus == tuple(sorted(some))
    assert threads.numbers == tuple(machine.threads)


def test_a_cpuset_of_one_node(machine, limited):
    machine_as_seen = limited(topology.read, cpuset_cpus="2-3", cpuset_mems="1")

    assert [node.cpus for node in machine_as_seen.nodes] == [(), (2, 3)]
    assert [node.grants_memory for node in machine_as_seen.nodes] == [False, True]
    assert topology.plan(machine_as_seen).numbers == (1,)
    assert topology.plan(machine_as_seen, mode="distribute").cpus == (2, 3)


def test_a_cpuset_of_all_cpus_and_the_memory_of_one_node(machine, limited):
    threads = limited(lambda: topology.plan(topology.read()), cpuset_mems="0")

    assert threads.numbers == (0,)
    assert len(threads.cpus) == 4


def test_memory_that_a_cpuset_keeps_from_us_is_refused(machine, memory, limited):
    def place():
        touched = memory(1 << 20)
        touched.fill()
        return touched.bind(1), touched.move(1), touched.holds(), touched.where()

    bound, moved, intact, where = limited(place, cpuset_mems="0")
    assert (bound, moved, intact, list(where)) == (-errno.EINVAL, -errno.EACCES, True, [0])


def test_a_quota(machine, limited):
    threads = limited(lambda: topology.plan(topology.read()), cpu_max="150000 100000")

    assert len(threads.cpus) == 2
    assert threads.numbers == (0, 1)
