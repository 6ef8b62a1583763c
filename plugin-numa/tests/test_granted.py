"""Recorded machines of which a part is granted: by taskset, cpusets, numactl and quotas."""

import logging

import pytest
from several_nodes import CPUS, numbers, write
from umbel_numa.topology import ANYWHERE, MODES, plan, read


def test_offline_cpus_are_left_out(neoverse):
    write(neoverse, {f"{CPUS}/online": "0-9,64-69", f"{CPUS}/offline": "10-63,70-127"})
    machine = read(neoverse, range(128))

    assert [node.cpus for node in machine.nodes] == [numbers((0, 9)), numbers((64, 69))]


def test_one_cpu_in_the_middle_that_is_offline(epyc):
    write(epyc, {f"{CPUS}/online": "0-69,71-127"})
    machine = read(epyc, range(128))

    assert machine.nodes[0].cpus == numbers((0, 31), (64, 69), (71, 95))
    assert [node.cores for node in machine.nodes] == [32, 32]
    assert 70 not in plan(machine, 128).cpus


def test_where_only_siblings_are_granted_they_are_the_cores(epyc):
    assert plan(read(epyc, range(96, 128))).cpus == (ANYWHERE,) * 32
    assert plan(read(epyc, range(96, 128)), mode="distribute").cpus == numbers((96, 127))


def test_numactl_uses_every_cpu_that_was_granted(epyc):
    granted = [0, 1, 64, 65, 96]

    assert plan(read(epyc, granted), mode="numactl").cpus == (0, 1, 64, 65, 96)
    assert plan(read(epyc, granted)).cpus == (0, 1, 96)


def test_affinity_is_never_widened(neoverse):
    machine = read(neoverse, {3, 5, 70})

    for mode in MODES:
        assert set(plan(machine, 3, mode).cpus) <= {3, 5, 70, ANYWHERE}
    assert plan(machine).cpus == (3, 5, 70)


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/box/inner",
            "sys/fs/cgroup/box/cpuset.cpus.effective": "0-1,64-65",
            "sys/fs/cgroup/box/inner/cgroup.procs": "1",
        },
        {
            "proc/self/cgroup": "7:cpuset:/box\n3:cpu,cpuacct:/\n0::/",
            "sys/fs/cgroup/cpuset/box/cpuset.effective_cpus": "0-1,64-65",
        },
        {
            "proc/self/cgroup": "7:cpuset:/docker/not-seen-from-inside",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-1,64-65",
        },
    ],
    ids=["v2", "v1", "v1 from inside"],
)
def test_cpuset_of_a_container(neoverse, files):
    machine = read(write(neoverse, files), range(128))

    assert plan(machine).cpus == (0, 1, 64, 65)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/status": "Name:\tpython\nMems_allowed:\t1\nMems_allowed_list:\t1"},
        {"sys/fs/cgroup/cpuset.mems.effective": "1"},
        {"proc/self/numa_maps": "5581 bind:1 file=/usr/bin/python mapped=1\n5582 bind:1"},
        {"proc/self/numa_maps": "5581 bind=static:1 anon=1"},
    ],
    ids=["status", "cgroup", "numactl --membind", "static"],
)
def test_memory_of_one_node_only_makes_one_node(neoverse, files):
    machine = read(write(neoverse, files), range(128))

    assert [node.grants_memory for node in machine.nodes] == [False, True]
    assert set(plan(machine, mode="distribute").nodes) == {0}
    assert plan(machine).numbers == (1,)
    assert len(plan(machine).cpus) == 128


@pytest.mark.parametrize("policy", ["default", "interleave:0-1", "prefer:1", "local"])
def test_other_policies_forbid_no_memory(neoverse, policy):
    write(neoverse, {"proc/self/numa_maps": f"5581 {policy} anon=1"})
    machine = read(neoverse, range(128))

    assert all(node.grants_memory for node in machine.nodes)


@pytest.mark.parametrize(
    ("files", "quota", "threads"),
    [
        ({"sys/fs/cgroup/cpu.max": "400000 100000"}, 4, 4),
        ({"sys/fs/cgroup/cpu.max": "765000 100000"}, 7.65, 7),
        ({"sys/fs/cgroup/cpu.max": "20000 100000"}, 0.2, 1),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None, 128),
        ({"sys/fs/cgroup/cpu.max": "99900000 100000"}, 999, 128),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            3,
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/box\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "50000",
            },
            5,
            5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            128,
        ),
    ],
    ids=["v2", "parts do not count", "little", "none", "more", "of a parent", "v1", "v1 none"],
)
def test_quota(neoverse, files, quota, threads):
    machine = read(write(neoverse, files), range(128))

    assert machine.quota == quota
    assert len(plan(machine).cpus) == threads


@pytest.mark.parametrize(
    ("granted", "wanted", "given", "said"),
    [
        (range(128), 129, 129, "129 threads are more than the 128 CPUs granted: 129 it is"),
        ({0, 64}, 10**6, 16, "1000000 threads are more than the 2 CPUs granted: 16 it is"),
        ({5}, 2, 2, "2 threads are more than the 1 CPU granted: 2 it is"),
    ],
)
def test_too_many_threads_are_warned_of(neoverse, caplog, granted, wanted, given, said):
    with caplog.at_level(logging.WARNING, "umbel"):
        threads = plan(read(neoverse, granted), wanted)

    assert [record.getMessage() for record in caplog.records] == [said]
    assert len(threads.cpus) == given
    assert set(threads.cpus) <= {*granted, ANYWHERE}
    assert list(threads.nodes) == sorted(threads.nodes)


def test_a_quota_that_is_passed_is_warned_of(neoverse, caplog):
    machine = read(write(neoverse, {"sys/fs/cgroup/cpu.max": "250000 100000"}), range(128))

    assert len(plan(machine, 4).cpus) == 4
    assert "4 threads are more than the 2 CPUs granted" in caplog.text
