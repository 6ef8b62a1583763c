"""The machine as it was booted is the machine that is read, and planned for."""

import pytest
from inside import here, running_on
from umbel_numa import topology
from umbel_numa.library import variant

MIB = 1 << 20


def test_nodes(machine):
    nodes = topology.read().nodes

    assert [node.number for node in nodes] == list(range(len(machine.nodes)))
    assert [node.cpus for node in nodes] == [node.cpus for node in machine.nodes]
    assert [node.grants_memory for node in nodes] == [bool(n.memory) for n in machine.nodes]
    for node, booted in zip(nodes, machine.nodes, strict=True):  # the kernel keeps some
        assert 0.8 * booted.memory * MIB <= node.memory_total <= booted.memory * MIB


def test_distances(machine):
    assert tuple(node.distances for node in topology.read().nodes) == machine.distances


def test_cpus_are_on_the_nodes_that_the_kernel_says(machine):
    for n, node in enumerate(machine.nodes):
        for cpu in node.cpus:
            with running_on({cpu}):
                assert here() == (cpu, n)
                assert topology.read().here == cpu


def test_nothing_limits_this_process(machine):
    assert topology.read().quota is None


@pytest.mark.parametrize("mode", ["auto", "distribute", "numactl", "mirror"])
def test_every_cpu_computes_for_the_nearest_memory(machine, mode):
    threads = topology.plan(topology.read(), mode=mode)

    assert threads.numbers == tuple(machine.threads)
    assert threads.cpus == tuple(cpu for cpus in machine.threads.values() for cpu in cpus)
    assert threads.nodes == tuple(
        n for n, cpus in enumerate(machine.threads.values()) for _ in cpus
    )


def test_isolated_on_the_node_that_this_thread_runs_on(machine):
    for number, cpus in machine.threads.items():
        whole = topology.read()
        with running_on({cpus[0]}):
            isolated = topology.read(affinity=range(16))
        assert isolated.nodes[number].cpus == whole.nodes[number].cpus
        assert topology.plan(isolated, mode="isolate").numbers == (number,)


def test_kernels_are_the_best_that_the_emulated_processor_has(machine):
    assert variant() == "avx2"
