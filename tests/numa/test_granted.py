"""What taskset and cgroups granted is taken, and no more."""

import errno
import itertools
import os
from pathlib import Path

import pytest
import umbel_numa
from inside import in_child, running_on
from models import DENSE, expected, loaded, logits, prompt
from umbel.state import Sequence
from umbel_numa import topology

CGROUPS = Path("/sys/fs/cgroup")
ONE = {"cpuset.cpus": "2-3", "cpuset.mems": "1"}  # of two nodes
_numbers = itertools.count()


def limit(group, files):
    for name, text in files.items():
        (group / name).write_text(text)


@pytest.fixture
def limited(machine):
    """limited(work, files): what `work` returns in a cgroup with these settings."""
    made = []

    def run(work, files=()):
        (CGROUPS / "cgroup.subtree_control").write_text("+cpuset +cpu")
        group = CGROUPS / f"test{next(_numbers)}"
        group.mkdir()
        made.append(group)
        limit(group, dict(files))

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
    machine_as_seen = limited(topology.read, ONE)

    assert [node.cpus for node in machine_as_seen.nodes] == [(), (2, 3)]
    assert [node.grants_memory for node in machine_as_seen.nodes] == [False, True]
    assert topology.plan(machine_as_seen).numbers == (1,)
    assert topology.plan(machine_as_seen, mode="distribute").cpus == (2, 3)


def test_a_cpuset_of_all_cpus_and_the_memory_of_one_node(machine, limited):
    threads = limited(lambda: topology.plan(topology.read()), {"cpuset.mems": "0"})

    assert threads.numbers == (0,)
    assert len(threads.cpus) == 4


def test_memory_that_a_cpuset_keeps_from_us_is_refused(machine, memory, limited):
    def place():
        touched = memory(1 << 20)
        touched.fill()
        return touched.bind(1), touched.move(1), touched.holds(), touched.where()

    bound, moved, intact, where = limited(place, {"cpuset.mems": "0"})
    assert (bound, moved, intact, list(where)) == (-errno.EINVAL, -errno.EACCES, True, [0])


def test_a_model_in_a_cpuset_of_one_node(machine, limited):
    wanted = expected(DENSE)

    def run():
        with loaded(DENSE, "distribute") as runner:
            rows = runner.forward(Sequence(), prompt(DENSE), every=True)
            engine, size = umbel_numa.opened(), runner.definition.file.path.stat().st_size
            same = wanted.startswith(rows.tobytes())
            return same, engine.placement.numbers, engine.resident()[0] / size

    same, numbers, part = limited(run, ONE)
    assert same
    assert numbers == (1,)
    assert part > 0.5


def test_a_cpuset_that_shrinks_to_one_node_while_a_model_is_open(machine, limited):
    wanted = expected(DENSE)

    def shrink():
        limit(CGROUPS / Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/"), ONE)

    def run():
        before = os.sched_getaffinity(0)
        return before, logits(DENSE, "distribute", None, shrink), os.sched_getaffinity(0)

    assert limited(run) == ({0, 1, 2, 3}, wanted, {2, 3})


def test_a_quota(machine, limited):
    threads = limited(lambda: topology.plan(topology.read()), {"cpu.max": "290000 100000"})

    assert len(threads.cpus) == 2
    assert threads.numbers == (0, 1)
