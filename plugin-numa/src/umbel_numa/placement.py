"""Which threads an engine has, where they run, and how many take part in what."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from umbel_numa.library import NODES
from umbel_numa.topology import ANYWHERE, Threads, Topology, plan

log = logging.getLogger("umbel")


@attrs.frozen
class Placement:
    """Thread i runs on CPU cpus[i] and belongs to node nodes[i], which the kernel calls
    numbers[nodes[i]] (ANYWHERE: memory may lie anywhere)."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    numbers: tuple[int, ...] = (ANYWHERE,)
    mode: str = "off"
    decode: int = 0  # threads of a step of few rows; 0: all
    prefill: int = 0
    experts: str = "rows"
    chosen: bool = True  # somebody asked for these numbers

    @classmethod
    def free(cls, threads: int) -> Placement:
        """Threads that the system puts where it likes."""
        return cls((ANYWHERE,) * threads, (0,) * threads)

    @property
    def pinned(self) -> bool:
        return any(cpu != ANYWHERE for cpu in self.cpus)

    def count(self, wanted: int) -> int:
        """How many threads take part where so many are wanted: at least one on each node, whose
        rows nobody else would compute."""
        return min(max(wanted or len(self.cpus), len(self.numbers)), len(self.cpus))


def placement(
    options: Mapping[str, Any], topology: Topology, tuned: Sequence[int] = ()
) -> Placement:
    """What the options and the machine give. `tuned`: numbers of threads that a model may turn
    out to run best with, for which there shall be room."""
    decode, prefill = options.get("threads", 0), options.get("threads_prefill", 0)
    mode, chosen = options.get("mode", "auto"), bool(decode or prefill)
    usual = len(plan(topology, None, mode).cpus)
    prefill = prefill or decode or usual
    decode = decode or usual
    made = _few(plan(topology, max(decode, prefill, *(() if chosen else tuned)), mode))
    if (fewest := min(decode, prefill)) < len(made.numbers):
        told = "fewer threads (%d) than nodes that hold weights (%d): one on each computes"
        log.warning(told, fewest, len(made.numbers))
    experts = options.get("experts", "rows")
    if len(made.numbers) == 1:
        if mode == "mirror":
            log.warning("numa.mode=mirror makes no copies: no second node is used")
        if experts == "whole":
            log.warning("numa.experts=whole has no effect: no second node is used")
    given = attrs.evolve(made, mode=mode, experts=experts, chosen=chosen)
    return attrs.evolve(given, decode=given.count(decode), prefill=given.count(prefill))


def _few(threads: Threads) -> Placement:
    """Nodes as the engine numbers them, if it has room for so many."""
    if len(threads.numbers) <= NODES:
        return Placement(threads.cpus, threads.nodes, threads.numbers or (ANYWHERE,))
    told = "%d NUMA nodes are more than %d: weights are not dealt over them"
    log.warning(told, len(threads.numbers), NODES)
    return Placement(threads.cpus, (0,) * len(threads.cpus))


def balancing(root: Path = Path("/")) -> bool:
    """Whether the kernel moves pages to where they were read last."""
    try:
        return (root / "proc/sys/kernel/numa_balancing").read_text().strip() not in ("", "0")
    except OSError:
        return False


def available(number: int, root: Path = Path("/")) -> int:
    """Bytes that a node has free, or in copies of files that it can do without."""
    path = root / f"sys/devices/system/node/node{number}/meminfo"
    try:
        text = path.read_text()
    except OSError:
        return 0
    found = re.findall(r"(?:MemFree|Inactive\(file\)):\s*([0-9]+) kB", text)
    return sum(map(int, found)) << 10
