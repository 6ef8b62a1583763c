"""Recorded machines: what is read off them, and where threads would run."""

import logging
from pathlib import Path

import pytest
from umbel.errors import DeviceError, OptionError
from umbel_numa.topology import ANYWHERE, MODES, Node, Topology, plan, read

GIB = 1 << 30
NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def node(number, cpus, distances, total=64, free=32):
    """A node's folder as the kernel writes it; memory in GiB."""
    name = f"{NODES}/node{number}"
    lines = (
        f"Node {number} {key}: {gib << 20:14} kB"
        for key, gib in [("MemTotal", total), ("MemFree", free)]
    )
    return {
        f"{name}/cpulist": cpus,
        f"{name}/distance": distances,
        f"{name}/meminfo": "\n".join(lines),
    }


def siblings(count, apart):
    """Cores of two threads each, whose numbers lie `apart`."""
    return {
        f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % apart},{cpu % apart + apart}"
        for cpu in range(count)
    }


@pytest.fixture
def neoverse(tmp_path):
    """Two sockets of 64 cores, one thread each."""
    files = {f"{NODES}/online": "0-1", f"{CPUS}/online": "0-127"}
    return write(
        tmp_path, files | node(0, "0-63", "10 20") | node(1, "64-127", "20 10", free=60)
    )


@pytest.fixture
def epyc(tmp_path):
    """Two sockets of 32 cores with two threads each, numbered as Linux does on x86."""
    files = {f"{NODES}/online": "0-1", f"{CPUS}/online": "0-127"}
    files |= node(0, "0-31,64-95", "10 32") | node(1, "32-63,96-127", "32 10")
    return write(tmp_path, files | siblings(128, 64))


def numbers(*ranges):
    return tuple(cpu for first, last in ranges for cpu in range(first, last + 1))


def test_two_nodes(neoverse):
    machine = read(neoverse, range(128))

    assert machine == Topology(
        (
            Node(0, numbers((0, 63)), 64 * GIB, 32 * GIB, (10, 20), cores=64),
            Node(1, numbers((64, 127)), 64 * GIB, 60 * GIB, (20, 10), cores=64),
        )
    )


def test_threads_of_a_node_are_neighbours(neoverse):
    threads = plan(read(neoverse, range(128)), 40)

    assert threads.cpus == numbers((0, 19), (64, 83))
    assert threads.nodes == (0,) * 20 + (1,) * 20
    assert threads.numbers == (0, 1)


def test_an_odd_thread_goes_to_the_first_node(neoverse):
    assert plan(read(neoverse, range(128)), 3).nodes == (0, 0, 1)


def test_fewer_threads_than_nodes_use_the_first(neoverse):
    threads = plan(read(neoverse, range(128)), 1)

    assert (threads.cpus, threads.nodes, threads.numbers) == ((0,), (0,), (0,))


def test_nodes_whose_numbers_are_not_in_a_row_and_siblings(epyc):
    machine = read(epyc, range(128))

    assert machine.nodes[0].cpus == numbers((0, 31), (64, 95))
    assert [node.cores for node in machine.nodes] == [32, 32]


def test_one_thread_for_each_physical_core(epyc):
    threads = plan(read(epyc, range(128)))

    assert threads.cpus == numbers((0, 63))
    assert threads.nodes == (0,) * 32 + (1,) * 32


def test_more_threads_than_cores_take_the_siblings_of_their_node(epyc, caplog):
    threads = plan(read(epyc, range(128)), 66)

    assert threads.cpus == numbers((0, 31), (64, 64), (32, 63), (96, 96))
    assert not caplog.records


def test_a_core_of_either_kind_has_one_thread(tmp_path):
    """Four fast cores of two threads each, and eight slow ones."""
    pairs = {
        f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu & ~1}-{cpu | 1}"
        for cpu in range(8)
    }
    slow = {f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu}" for cpu in range(8, 16)}
    machine = read(write(tmp_path, pairs | slow), range(16))

    assert machine.nodes[0].cores == 12
    assert plan(machine, mode="distribute").cpus == (0, 2, 4, 6, *range(8, 16))
    assert plan(machine, 14, "distribute").cpus[12:] == (1, 3)


def test_where_only_siblings_are_granted_they_are_the_cores(epyc):
    assert plan(read(epyc, range(96, 128))).cpus == (ANYWHERE,) * 32
    assert plan(read(epyc, range(96, 128)), mode="distribute").cpus == numbers((96, 127))


def test_numactl_uses_every_cpu_that_was_granted(epyc):
    granted = [0, 1, 64, 65, 96]

    assert plan(read(epyc, granted), mode="numactl").cpus == (0, 1, 64, 65, 96)
    assert plan(read(epyc, granted)).cpus == (0, 1, 96)


def test_four_nodes(tmp_path):
    files = {f"{NODES}/online": "0-3"}
    for n, distances in enumerate(("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10")):
        files |= node(n, f"{2 * n}-{2 * n + 1}", distances)
    threads = plan(read(write(tmp_path, files), range(8)))

    assert threads.nodes == (0, 0, 1, 1, 2, 2, 3, 3)
    assert threads.cpus == tuple(range(8))


def test_gaps_in_the_numbers_of_nodes(tmp_path):
    files = {f"{NODES}/online": "0,8", f"{NODES}/possible": "0-255"}
    machine = read(
        write(tmp_path, files | node(0, "0-3", "10 40") | node(8, "4-7", "40 10")), range(8)
    )

    assert plan(machine).nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert plan(machine).numbers == (0, 8)


def test_cpus_of_a_node_without_memory_join_the_nearest(tmp_path):
    files = {f"{NODES}/online": "0-2"}
    files |= (
        node(0, "0-1", "10 32 12") | node(1, "2-3", "32 10 32") | node(2, "4-5", "12 32 10", 0)
    )
    threads = plan(read(write(tmp_path, files), range(6)))

    assert threads.cpus == (0, 1, 4, 5, 2, 3)
    assert threads.nodes == (0, 0, 0, 0, 1, 1)
    assert threads.numbers == (0, 1)


def test_a_node_without_cpus_gets_no_threads(tmp_path):
    files = {f"{NODES}/online": "0-2"}
    files |= node(0, "0-1", "10 20 30") | node(1, "2-3", "20 10 30") | node(2, "", "30 30 10")
    machine = read(write(tmp_path, files), range(4))

    assert machine.nodes[2].cpus == ()
    assert machine.nodes[2].grants_memory
    assert plan(machine).numbers == (0, 1)


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


def test_nothing_to_read(tmp_path):
    """As on macOS, or in a sandbox without /sys and /proc."""
    machine = read(tmp_path, range(6))

    assert machine == Topology((Node(0, tuple(range(6)), 0, 0, (10,), cores=6),))
    assert plan(machine, mode="distribute").cpus == tuple(range(6))


def test_a_kernel_without_numa_still_tells_cores_and_memory(tmp_path):
    meminfo = "MemTotal:       16384 kB\nMemFree:         8192 kB\nMemAvailable: 9000 kB"
    machine = read(write(tmp_path, siblings(4, 2) | {"proc/meminfo": meminfo}), range(4))

    assert machine.nodes == (Node(0, (0, 1, 2, 3), 16 << 20, 8 << 20, (10,), cores=2),)


def test_distances_that_are_not_told_are_those_the_kernel_assumes(tmp_path):
    files = {f"{NODES}/online": "0-1"} | node(0, "0", "") | node(1, "1", "", 0)
    machine = read(write(tmp_path, files), range(2))

    assert [node.distances for node in machine.nodes] == [(10, 20), (20, 10)]
    assert plan(machine, mode="distribute").cpus == (0, 1)


def test_what_cannot_be_read_says_where(neoverse):
    write(neoverse, {f"{NODES}/node1/cpulist": "64-x"})

    with pytest.raises(DeviceError) as caught:
        read(neoverse, range(128))
    assert caught.value.where == neoverse / NODES / "node1/cpulist"
    assert caught.value.got == "'x'"


def test_this_machine():
    machine = read()

    assert machine.nodes
    assert len(plan(machine).cpus) >= 1


def test_isolate_is_the_node_we_run_on(neoverse):
    after_name = " ".join(["S", *["0"] * 35, "70", "0"])  # field 39 is the CPU
    write(neoverse, {"proc/thread-self/stat": f"12 (a (b) c) {after_name}"})
    machine = read(neoverse, range(128))
    threads = plan(machine, mode="isolate")

    assert machine.here == 70
    assert threads.cpus == numbers((64, 127))
    assert (set(threads.nodes), threads.numbers) == ({0}, (1,))


@pytest.mark.parametrize("mode", ["auto", "distribute", "mirror", "numactl"])
def test_modes_that_take_every_node(neoverse, mode):
    assert plan(read(neoverse, range(128)), mode=mode).numbers == (0, 1)


def test_off_pins_nothing_and_knows_no_nodes(neoverse):
    threads = plan(read(neoverse, range(128)), 4, "off")

    assert (threads.cpus, threads.nodes, threads.numbers) == ((ANYWHERE,) * 4, (0,) * 4, ())


def test_auto_leaves_threads_of_an_only_node_to_the_scheduler(neoverse):
    assert plan(read(neoverse, range(64)), 4).cpus == (ANYWHERE,) * 4
    assert plan(read(neoverse, range(64)), 4, "distribute").cpus == (0, 1, 2, 3)


def test_unequal_nodes(neoverse):
    machine = read(neoverse, {0, *range(64, 72)})

    assert plan(machine, 6).nodes == (0, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_number_of_threads_that_is_not_positive_is_refused(neoverse, threads):
    with pytest.raises(OptionError, match="must be positive") as caught:
        plan(read(neoverse, range(128)), threads)
    assert caught.value.got == threads


def test_an_unknown_mode_is_refused(neoverse):
    with pytest.raises(OptionError, match="no such mode") as caught:
        plan(read(neoverse, range(128)), mode="migrate")
    assert caught.value.got == "migrate"


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


def test_values_cannot_be_changed(tmp_path):
    machine = read(Path(tmp_path), range(2))

    with pytest.raises(AttributeError):
        machine.quota = 4
