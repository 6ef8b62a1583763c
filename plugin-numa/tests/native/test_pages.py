"""Memory by the page: placed, counted, moved, given back; and a system that refuses."""

import ctypes
import errno
import mmap
import sys
from itertools import pairwise
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src/umbel_numa/native"
NOWHERE = 1000  # a node that no machine has
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux places pages")


@pytest.fixture
def memory(library):
    """memory(pages, huge=0): its address; freed in the end."""
    made = []

    def allocate(pages, huge=0):
        size = pages * library.un_pages_size()
        made.append((library.un_pages_alloc(size, huge), size))
        assert made[-1][0]
        return made[-1][0]

    yield allocate
    for address, size in made:
        assert library.un_pages_free(address, size) == 0


@pytest.fixture
def where(library):
    """where(address, bytes): pages on node 0, and those elsewhere or nowhere."""

    def ask(address, size):
        counts = (ctypes.c_int64 * 2)(-1, -1)
        result = library.un_pages_where(address, size, counts, 1)
        if result in (-errno.EPERM, -errno.ENOSYS):
            pytest.skip("the kernel here does not tell where pages lie")
        assert result == 0
        return list(counts)

    return ask


def test_fresh_memory_is_zero_and_on_a_page(library, memory):
    page = library.un_pages_size()
    address = memory(3)

    assert address % page == 0
    assert ctypes.string_at(address, 3 * page) == bytes(3 * page)


def test_much_memory_begins_at_a_huge_page(library, memory):
    pages = (5 << 20) // library.un_pages_size()
    address = memory(pages, huge=1)

    assert address % (2 << 20) == 0
    ctypes.memset(address, 1, 5 << 20)


@pytest.mark.parametrize("size", [0, -1, 2**63 - 1])
def test_memory_that_cannot_be(library, size):
    assert library.un_pages_alloc(size, 0) is None


@LINUX
def test_pages_are_counted_where_they_are(library, memory, where):
    page = library.un_pages_size()
    address = memory(1300)  # more than are asked for at once
    ctypes.memset(address, 1, 700 * page)

    assert where(address, 1300 * page) == [700, 600]


def test_what_is_absent(library, memory):
    """What was never touched, or was given back."""
    page = library.un_pages_size()
    address = memory(9000)  # more than are asked for at once
    assert library.un_pages_absent(address, 9000 * page) == 9000 * page

    ctypes.memset(address, 1, 5000 * page)
    assert library.un_pages_absent(address, 9000 * page) == 4000 * page
    assert library.un_pages_absent(address + 1, 5000 * page) == page  # that begin in it
    assert library.un_pages_absent(address + 1, page - 1) == 0
    assert library.un_pages_drop(address, 10 * page) == 0
    assert library.un_pages_absent(address, 9000 * page) == 4010 * page


@LINUX
def test_what_is_not_mapped_is_not_absent(library):
    page = library.un_pages_size()
    address = library.un_pages_alloc(3 * page, 0)
    assert library.un_pages_free(address, 3 * page) == 0
    assert library.un_pages_absent(address, 3 * page) == -errno.ENOMEM


@LINUX
def test_neighbours_share_no_page(library, memory, where):
    page = library.un_pages_size()
    address = memory(10)
    ctypes.memset(address, 1, 10 * page)
    edges = [0, 1, page - 1, 3 * page + 5, 3 * page + 6, 7 * page, 10 * page]
    counts = [where(address + a, b - a)[0] for a, b in pairwise(edges)]

    assert counts == [1, 0, 3, 0, 3, 3]


@LINUX
def test_pages_move_and_keep_their_content(library, memory, where):
    page = library.un_pages_size()
    address = memory(600)
    content = bytes(range(256)) * (600 * page // 256)
    ctypes.memmove(address, content, len(content))
    where(address, page)

    assert library.un_pages_move(address, 600 * page, 0) == 0
    assert where(address, 600 * page) == [600, 0]
    assert ctypes.string_at(address, len(content)) == content


@LINUX
def test_a_page_that_is_not_there_is_told_and_the_others_move(library, memory, where):
    page = library.un_pages_size()
    address = memory(1200)
    ctypes.memset(address + 600 * page, 1, 600 * page)
    where(address, page)

    assert library.un_pages_move(address, 1200 * page, 0) == -errno.ENOENT
    assert where(address, 1200 * page) == [600, 600]


@LINUX
def test_bound_memory_lies_where_it_was_bound(library, memory, where):
    page = library.un_pages_size()
    address = memory(20)
    where(address, page)

    assert library.un_pages_bind(address, 20 * page, 0) == 0
    ctypes.memset(address, 1, 20 * page)
    assert where(address, 20 * page) == [20, 0]


@LINUX
@pytest.mark.parametrize("node", [-1, NOWHERE, 1 << 20])
def test_a_node_that_is_not_there_is_refused(library, memory, where, node):
    page = library.un_pages_size()
    address = memory(2)
    ctypes.memset(address, 7, 2 * page)
    where(address, page)

    assert library.un_pages_bind(address, 2 * page, node) == -errno.EINVAL
    assert library.un_pages_move(address, 2 * page, node) in (-errno.EINVAL, -errno.ENODEV)
    assert ctypes.string_at(address, 2 * page) == bytes([7]) * 2 * page


@LINUX
def test_only_whole_pages_are_dropped(library, memory):
    """Told by anonymous memory, of which nothing is left."""
    page = library.un_pages_size()
    address = memory(4)
    ctypes.memset(address, 7, 4 * page)

    assert library.un_pages_drop(address + 1, 3 * page) == 0
    kept = [ctypes.string_at(address + i * page, page) == bytes([7]) * page for i in range(4)]
    assert kept == [True, False, False, True]


def test_dropped_pages_of_a_file_are_read_again(library, tmp_path):
    page = library.un_pages_size()
    content = bytes(range(256)) * (4 * page // 256)
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert mapped[:] == content
        start = ctypes.addressof(view := ctypes.c_char.from_buffer(mapped))
        assert library.un_pages_drop(start, 4 * page) == 0
        assert mapped[:] == content
        del view


@LINUX
def test_a_refusing_system_is_told_and_breaks_nothing(build, run):
    """As in a container whose seccomp filter lets no NUMA calls through."""
    program = build(HERE / "refused.c", NATIVE / "pages.c")

    for error in (errno.EPERM, errno.ENOSYS):
        assert run(program, error).split() == [str(-error)] * 3 + ["intact"]
