"""Recorded machines: what is read off them, and where threads would run."""

from pathlib import Path

import pytest
from several_nodes import CPUS, GIB, NODES, node, numbers, siblings, write
from umbel.errors import DeviceError, OptionError
from umbel_numa.topology import ANYWHERE, Node, Topology, plan, read


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


def test_values_cannot_be_changed(tmp_path):
    machine = read(Path(tmp_path), range(2))

    with pytest.raises(AttributeError):
        machine.quota = 4
