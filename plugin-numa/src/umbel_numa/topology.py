"""The machine as this process may use it: nodes, CPUs, memory; and which threads go where.

All is read from files below a root, so that recorded machines can be read too. What taskset,
numactl, cpusets and quotas granted is never widened.
Reference: the kernel's Documentation/ABI/stable/sysfs-devices-node, admin-guide/cputopology.rst
and admin-guide/cgroup-v2.rst.
"""

import logging
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import attrs
from umbel.errors import DeviceError, OptionError

log = logging.getLogger("umbel")

MODES = ("auto", "distribute", "isolate", "numactl", "mirror", "off")
ANYWHERE = -1  # the CPU of a thread that is not pinned
_CROWD = 8  # the most threads on one CPU: above is a slip of the finger


@attrs.frozen
class Node:
    """A NUMA node. Its CPUs are those granted: one of each physical core, then the others."""

    number: int  # the kernel's
    cpus: tuple[int, ...]
    memory_total: int  # bytes
    memory_free: int
    distances: tuple[int, ...]  # to the nodes of the topology, in their order
    cores: int  # how many of the CPUs come first
    grants_memory: bool = True  # there is some, and we may use it


@attrs.frozen
class Topology:
    """All nodes, also those that grant no CPU or no memory."""

    nodes: tuple[Node, ...]
    quota: float | None = None  # CPUs' worth of time that the cgroup allows
    here: int | None = None  # the CPU that this thread ran on


@attrs.frozen
class Threads:
    """Thread i runs on CPU cpus[i], or ANYWHERE, and belongs to node nodes[i].

    These nodes are numbered from 0 and their threads are neighbours, as un_pool_new wants it;
    numbers[n] is what the kernel calls node n. No numbers: memory may lie anywhere.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    numbers: tuple[int, ...]


def read(root: str | Path = "/", affinity: Collection[int] | None = None) -> Topology:
    """The machine below `root`; the affinity of this thread unless one is given."""
    root = Path(root)
    cpus, memory = _granted_cpus(root, affinity), _granted_memory(root)
    numbers = sorted(_list(root / "sys/devices/system/node/online") or ())
    nodes = [_node(root, number, numbers, cpus, memory) for number in numbers]
    if not any(node.cpus for node in nodes):  # no NUMA in the kernel, no sysfs, macOS
        order, cores = _in_order(root, cpus)
        total, free = _memory(root / "proc/meminfo")
        nodes = [Node(0, order, total, free, (10,), cores)]
    return Topology(tuple(nodes), _quota(root), _here(root))


def plan(topology: Topology, threads: int | None = None, mode: str = "auto") -> Threads:
    """Where `threads` threads run: by default one per physical core, within the quota.

    auto, distribute and mirror take every node; isolate the one we run on; numactl every CPU
    that was granted, since the user chose them; off pins nothing and knows no nodes.
    """
    if mode not in MODES:
        msg = "there is no such mode"
        raise OptionError(msg, where="numa.mode", expected=" or ".join(MODES), got=mode)
    nodes = _usable(topology)
    if mode == "isolate":
        nodes = [next((node for node in nodes if topology.here in node.cpus), nodes[0])]
    count = _count(nodes, topology.quota, threads, every=mode == "numactl")
    if mode == "off":
        return Threads((ANYWHERE,) * count, (0,) * count, ())
    # on an only node a pinned thread is no nearer to anything, and cannot dodge other work
    pinned = mode != "auto" or len(nodes) > 1
    shares = _deal(count, [len(node.cpus) for node in nodes])
    cpus, numbers = [], []
    for node, share in zip(nodes, shares, strict=True):
        cpus += [node.cpus[i % len(node.cpus)] if pinned else ANYWHERE for i in range(share)]
        numbers += [node.number] if share else []
    belongs = tuple(n for n, share in enumerate(shares) for _ in range(share))
    return Threads(tuple(cpus), belongs, tuple(numbers))


def _usable(topology: Topology) -> list[Node]:
    """Nodes with memory and CPUs: those without memory lend their CPUs to the nearest."""
    nodes = topology.nodes
    homes = [node for node in nodes if node.grants_memory] or list(nodes)
    groups = {home.number: [home] for home in homes}
    for node in nodes:
        if node not in homes:
            groups[_nearest(topology, node, homes).number].append(node)
    merged = (_merged(group) for group in groups.values())
    return [node for node in merged if node.cpus]


def _nearest(topology: Topology, node: Node, homes: Sequence[Node]) -> Node:
    return min(homes, key=lambda home: node.distances[topology.nodes.index(home)])


def _merged(group: Sequence[Node]) -> Node:
    """The first node, with the CPUs of all."""
    first = [cpu for node in group for cpu in node.cpus[: node.cores]]
    others = [cpu for node in group for cpu in node.cpus[node.cores :]]
    return attrs.evolve(group[0], cpus=(*first, *others), cores=len(first))


def _count(
    nodes: Sequence[Node], quota: float | None, threads: int | None, *, every: bool
) -> int:
    """The number asked for, or that of the cores. A part of a CPU in a quota counts for
    nothing: who overdraws it is stopped for a while, and all others wait for him."""
    cpus = sum(len(node.cpus) for node in nodes)
    most = cpus if quota is None else max(1, min(cpus, math.floor(quota)))
    if threads is None:
        return min(most, cpus if every else sum(node.cores for node in nodes))
    if threads < 1:
        msg = "the number of threads must be positive"
        raise OptionError(msg, where="threads", expected=f"1 to {most}", got=threads)
    count = min(threads, _CROWD * cpus)
    if threads > most:
        granted = f"{most} CPUs" if most > 1 else "1 CPU"
        log.warning(
            "%d threads are more than the %s granted: %d it is", threads, granted, count
        )
    return count


def _deal(count: int, rooms: Sequence[int]) -> list[int]:
    """How many threads each node gets: one each in turn while it has CPUs, then one more on
    each CPU."""
    shares = [0] * len(rooms)
    level = 0
    while sum(shares) < count:
        level += 1
        for n, room in enumerate(rooms):
            crowded = level > max(rooms)
            if sum(shares) < count and (crowded or shares[n] < room):
                shares[n] += 1
    return shares


def _node(
    root: Path, number: int, numbers: Sequence[int], cpus: set[int], memory: set[int] | None
) -> Node:
    folder = root / f"sys/devices/system/node/node{number}"
    order, cores = _in_order(root, cpus & (_list(folder / "cpulist") or set()))
    total, free = _memory(folder / "meminfo")
    distances = [_integer(word, folder) for word in _text(folder / "distance").split()]
    if len(distances) != len(numbers):  # none given: what the kernel assumes then
        distances = [10 if other == number else 20 for other in numbers]
    grants = total > 0 and (memory is None or number in memory)
    return Node(number, order, total, free, tuple(distances), cores, grants)


def _in_order(root: Path, cpus: Collection[int]) -> tuple[tuple[int, ...], int]:
    """The CPUs, the first granted one of each physical core before the others; the number of
    cores."""
    first: list[int] = []
    others: list[int] = []
    for cpu in sorted(cpus):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = (_list(topology / "thread_siblings_list") or {cpu}) & set(cpus)
        (first if cpu == min(siblings | {cpu}) else others).append(cpu)
    return (*first, *others), len(first)


def _granted_cpus(root: Path, affinity: Collection[int] | None) -> set[int]:
    online = _list(root / "sys/devices/system/cpu/online")
    if affinity is None and hasattr(os, "sched_getaffinity"):
        affinity = os.sched_getaffinity(0)
    if affinity is None:
        affinity = online or range(os.cpu_count() or 1)
    cpus = set(affinity)
    for granted in (online, _cpuset(root, "cpus")):
        if granted and cpus & granted:  # else what is written there is not about us
            cpus &= granted
    return cpus


def _granted_memory(root: Path) -> set[int] | None:
    """The nodes whose memory may be had; None: all. Cpusets and `numactl --membind` say so."""
    status, maps = root / "proc/self/status", root / "proc/self/numa_maps"
    limits = [_cpuset(root, "mems")]
    for path, text, pattern in (
        (status, _text(status), r"^Mems_allowed_list:\s*(.*)$"),
        (maps, _line(maps), r"^\S+ bind(?:=\w+)?:(\S+)"),
    ):
        if found := re.search(pattern, text, re.MULTILINE):
            limits.append(_parse(found[1], path))
    known = [limit for limit in limits if limit]
    return set.intersection(*known) if known else None


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of our cgroup and of its parents, in both hierarchies."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "0::/").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for base in (
            (mount / names, mount / controller) if names else (mount, mount / "unified")
        ):
            for depth in range(len(parts), -1, -1):
                yield base.joinpath(*parts[:depth])


def _cpuset(root: Path, what: str) -> set[int] | None:
    """`cpus` or `mems` of the innermost cgroup that limits them."""
    for folder in _cgroups(root, "cpuset"):
        for name in (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}"):
            if found := _list(folder / name):
                return found
    return None


def _quota(root: Path) -> float | None:
    """The tightest quota of our cgroup and its parents, in CPUs."""
    quotas = []
    for folder in _cgroups(root, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            words = " ".join(_text(folder / name) for name in names).split()
            if len(words) == 2 and words[0] not in ("max", "-1"):
                quota, period = (_integer(word, folder / names[0]) for word in words)
                quotas.append(quota / max(period, 1))
    return min(quotas, default=None)


def _here(root: Path) -> int | None:
    after_name = _text(root / "proc/thread-self/stat").rpartition(")")[2].split()
    return int(after_name[36]) if len(after_name) > 36 else None


def _memory(path: Path) -> tuple[int, int]:
    """Bytes in all and free, of a node's meminfo or the machine's."""
    found = dict(re.findall(r"(MemTotal|MemFree):\s*([0-9]+) kB", _text(path)))
    return int(found.get("MemTotal", 0)) << 10, int(found.get("MemFree", 0)) << 10


def _list(path: Path) -> set[int] | None:
    """The numbers of a file such as `0-31,64-95`; None without the file."""
    return _parse(_text(path), path) if path.is_file() else None


def _parse(text: str, path: Path) -> set[int]:
    numbers: set[int] = set()
    for piece in text.strip().split(",") if text.strip() else ():
        first, _, last = piece.partition("-")
        start = _integer(first, path)
        numbers.update(range(start, _integer(last or first, path) + 1))
    return numbers


def _integer(word: str, path: Path) -> int:
    if not re.fullmatch("[0-9]{1,18}", word):
        msg = "the system's description of itself cannot be read"
        raise DeviceError(msg, where=path, expected="a whole number", got=repr(word))
    return int(word)


def _line(path: Path) -> str:
    """The first line: the whole of some files takes the kernel long."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline()
    except OSError:
        return ""


def _text(path: Path) -> str:
    """The text of a file, or none: much may be absent or hidden, above all in containers."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
