"""Memory lies where it was asked for, by the kernel's own answer."""

import errno
import mmap
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from inside import address_of, in_child, running_on, where
from umbel_numa.pages import Binder
from umbel_numa.slabs import SLAB, Slabs

SMALL, LARGE = 1 << 20, 8 << 20  # the large in huge pages


def homes(machine):
    """Nodes that have memory."""
    return [n for n, node in enumerate(machine.nodes) if node.memory]


def placed(memory):
    """Pages per node where all are somewhere."""
    return {node: pages * memory.page for node, pages in memory.where().items()}


def test_fresh_memory_is_nowhere(memory):
    assert placed(memory(SMALL)) == {-1: SMALL}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_unbound_memory_lies_next_to_the_thread_that_touches_it(machine, memory, size):
    for home, cpus in machine.threads.items():
        for cpu in cpus:
            fresh = memory(size)
            with running_on({cpu}):
                fresh.fill()
            assert placed(fresh) == {home: size}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_bound_memory_lies_on_its_node_whoever_touches_it(machine, memory, size):
    for home in homes(machine):
        fresh = memory(size)
        assert fresh.bind(home) == 0
        fresh.fill()
        assert placed(fresh) == {home: size}


@pytest.mark.parametrize("how", ["bind", "move"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_touched_memory_goes_to_its_node_with_its_content(machine, memory, size, how):
    for home in homes(machine):
        touched = memory(size)
        touched.fill(home + 1)
        assert getattr(touched, how)(home) == 0
        assert placed(touched) == {home: size}
        assert touched.holds(home + 1)


@pytest.mark.parametrize("size", [100, SMALL, SLAB // 2], ids=["little", "small", "own"])
def test_pieces_of_slabs_lie_on_their_node_whoever_touches_them(machine, native, size):
    slabs, nodes = Slabs(Binder()), homes(machine)
    pieces = [(node, slabs.take(size, "weight", node)) for node in (*nodes, *nodes)]
    for n, (_, piece) in enumerate(pieces):
        piece[:] = n
    pages = -(-size // native.un_pages_size())

    for n, (node, piece) in enumerate(pieces):
        assert np.all(piece == n)
        lies = where(native, piece.ctypes.data, size, len(machine.nodes))
        assert lies == {node: pages}


def test_more_than_a_node_has_lies_on_others(machine, native):
    """Bound to the node, the process would be ended."""
    node, piece = homes(machine)[-1], 32 << 20
    pieces = (machine.nodes[node].memory << 20) // piece

    def take():
        binder, taken, lies = Binder(), [], Counter()
        for _ in range(pieces):
            taken.append(binder.fresh(piece, "weight", node))
            taken[-1][:] = 1
        for memory in taken:
            lies.update(where(native, memory.ctypes.data, piece, len(machine.nodes)))
        return lies

    lies = in_child(take)
    assert sum(lies.values()) == pieces * piece // native.un_pages_size()
    assert sum(lies.values()) > lies[node] > sum(lies.values()) / 3


def test_a_segment_for_each_node(machine, memory):
    """Segments that begin and end within pages share none."""
    whole, nodes = memory(SMALL), homes(machine)
    whole.fill()
    edges = [SMALL * n // len(nodes) // 100 * 100 for n in range(len(nodes))] + [SMALL]
    for n, node in enumerate(nodes):
        assert whole.move(node, edges[n], edges[n + 1] - edges[n]) == 0

    pages = [-(-edge // whole.page) for edge in edges]
    assert whole.where() == {
        node: pages[n + 1] - pages[n] for n, node in enumerate(nodes) if pages[n + 1] > pages[n]
    }
    assert whole.holds()


def test_what_is_told_is_what_the_kernel_writes_of_the_mapping(machine, memory):
    whole, nodes = memory(SMALL), homes(machine)
    whole.fill()
    whole.move(nodes[-1], 0, SMALL // 4)
    whole.move(nodes[0], SMALL // 4, SMALL - SMALL // 4)
    maps = Path("/proc/self/numa_maps").read_text().splitlines()
    (line,) = (line for line in maps if line.startswith(f"{whole.address:08x} "))

    assert {int(n): int(p) for n, p in re.findall(r" N(\d+)=(\d+)", line)} == whole.where()


def test_cached_pages_of_a_file_move_while_it_is_mapped(machine, native, tmp_path):
    content = bytes(range(256)) * (SMALL // 256)
    (tmp_path / "file").write_bytes(content)
    with (
        open(tmp_path / "file", "r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapped,
    ):
        for home in homes(machine):
            assert mapped[:] == content  # each page is seen by this process
            address = address_of(mapped)
            assert native.un_pages_move(address, SMALL, home) == 0
            pages = SMALL // native.un_pages_size()
            assert where(native, address, SMALL, len(machine.nodes)) == {home: pages}
            assert mapped[:] == content


def test_a_node_that_has_no_memory_is_refused(machine, memory):
    touched = memory(SMALL)
    touched.fill()
    without = [n for n, node in enumerate(machine.nodes) if not node.memory]
    for node in (*without, len(machine.nodes)):
        assert touched.bind(node) == -errno.EINVAL
        assert touched.move(node) == -errno.ENODEV
        assert touched.holds()
