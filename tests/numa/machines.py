"""The machines that are booted: their nodes, and the tests that run on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs


@attrs.frozen
class Node:
    cpus: tuple[int, ...]
    memory: int  # MiB


@attrs.frozen
class Machine:
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    threads: Mapping[int, tuple[int, ...]]  # the CPUs that are nearest to each node's memory
    tests: tuple[str, ...]

    def arguments(self) -> Iterator[str]:
        """What qemu is told."""
        yield from ("-smp", f"{sum(len(node.cpus) for node in self.nodes)}")
        yield from ("-m", f"{sum(node.memory for node in self.nodes)}")
        for n, node in enumerate(self.nodes):
            words = [f"node,nodeid={n}", *(f"cpus={cpu}" for cpu in node.cpus)]
            if node.memory:
                yield from ("-object", f"memory-backend-ram,size={node.memory}M,id=memory{n}")
                words.append(f"memdev=memory{n}")
            yield from ("-numa", ",".join(words))
        for n, row in enumerate(self.distances):
            for other, distance in enumerate(row[:n]):
                yield from ("-numa", f"dist,src={n},dst={other},val={distance}")


_EVERYWHERE = ("test_machine.py", "test_pages.py", "test_threads.py")
_SOME = "test_model.py::test_every_mode_gives_the_same_bits"
_SAME = tuple(f"{_SOME}[llama-e256-Q8_0-{mode}]" for mode in ("auto", "mirror"))
MACHINES = {
    "two": Machine(
        nodes=(Node((0, 1), 640), Node((2, 3), 640)),
        distances=((10, 21), (21, 10)),
        threads={0: (0, 1), 1: (2, 3)},
        tests=(*_EVERYWHERE, "test_granted.py", "test_refused.py", "test_model.py"),
    ),
    "four": Machine(
        nodes=tuple(Node((cpu,), 384) for cpu in range(4)),
        distances=((10, 12, 32, 32), (12, 10, 32, 32), (32, 32, 10, 12), (32, 32, 12, 10)),
        threads={0: (0,), 1: (1,), 2: (2,), 3: (3,)},
        tests=(*_EVERYWHERE, "test_model.py"),
    ),
    # node 1 has no memory, and that of node 2 is nearer than that of node 0; node 3 has no CPUs
    "odd": Machine(
        nodes=(Node((0, 1), 640), Node((2,), 0), Node((3,), 384), Node((), 256)),
        distances=((10, 32, 32, 40), (32, 10, 12, 40), (32, 12, 10, 40), (40, 40, 40, 10)),
        threads={0: (0, 1), 2: (3, 2)},
        tests=(*_EVERYWHERE, *_SAME, "test_model.py::test_weights_lie_where_they_are_read"),
    ),
}
