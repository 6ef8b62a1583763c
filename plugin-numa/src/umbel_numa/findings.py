"""What `umbel doctor` says of this machine as the native engine sees it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from umbel.errors import UmbelError
from umbel.hookspecs import Finding

from umbel_numa import tuned
from umbel_numa.library import FORCED, variant, variants
from umbel_numa.pages import may_ask
from umbel_numa.placement import balancing
from umbel_numa.topology import Node, Topology, plan, read

GAINS = {
    "avx512": "AVX-512 with VNNI",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2, FMA and F16C",
    "i8mm": "the 8-bit matrix products of Armv8.6",
    "dotprod": "the 8-bit dot products of Armv8.2",
}


def findings(root: Path = Path("/")) -> Sequence[Finding]:
    try:
        return [*_kernels(), *_machine(read(root), root)]
    except UmbelError as error:
        return [Finding("error", str(error).partition("\n")[0], error.do or "")]


def _kernels() -> Iterator[Finding]:
    known, used, forced = variants(), variant(), os.environ.get(FORCED)
    if forced:
        yield Finding("note", f"{FORCED}={forced} forces these kernels", f"unset {FORCED}")
    yield Finding("ok", f"kernels {used}, of {', '.join(known)}")
    better = itertools.takewhile(lambda name: name != used, known)  # the fastest come first
    lacking = [GAINS[name] for name in better if not known[name] and name in GAINS]
    if used == "scalar" and lacking:
        what = f"slow kernels: this processor has none of {'; '.join(lacking)}"
        yield Finding("warning", what, "on a virtual machine, give it the host's processor")
    elif lacking and not forced:
        yield Finding("note", f"faster kernels would want {' or '.join(lacking)}")


def _machine(topology: Topology, root: Path) -> Iterator[Finding]:
    threads = plan(topology)
    nodes = [f"node {n.number}: {_cpus(n)}" for n in topology.nodes if n.cpus]
    usual = f"{_some(len(threads.cpus), 'thread')} by default"
    yield Finding("ok", f"{usual} ({', '.join(nodes)})")
    if topology.quota is not None:
        what = f"{topology.quota:g} processors' time is granted (cgroup)"
        yield Finding("note", f"{what}: {usual}")
    barred = [str(n.number) for n in topology.nodes if n.cpus and not n.grants_memory]
    if barred:
        what = f"memory of node {', '.join(barred)} is not granted, or there is none"
        yield Finding("note", f"{what}: its CPUs work with that of others")
    yield from _memory(root, len(threads.numbers) > 1)
    known = {size for records in tuned.of_all_ways(topology) for size in records.counts}
    if known:
        sizes = _some(len(known), "size")
        yield Finding("ok", f"threads were tuned for {sizes} of models")


def _cpus(node: Node) -> str:
    cpus = _some(len(node.cpus), "CPU")
    return cpus if node.cores == len(node.cpus) else f"{cpus} of {_some(node.cores, 'core')}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _memory(root: Path, many: bool) -> Iterator[Finding]:
    huge = _choice(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if huge == "never":
        do = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)"
        what = "huge pages are off: weights are read up to a fifth slower"
        yield Finding("warning", what, do)
    elif huge:
        yield Finding("ok", f"huge pages: {huge}")
    if not many:
        return
    if balancing(root):
        what = "numa_balancing is on: the kernel moves pages against their placement"
        yield Finding("warning", what, "sysctl kernel.numa_balancing=0 (as root)")
    if not may_ask():
        do = "docker: --cap-add SYS_NICE, or a seccomp profile with mbind and move_pages"
        what = "move_pages is refused: weights lie where they are touched first"
        yield Finding("warning", what, do)


def _choice(path: Path) -> str:
    """The one in brackets, as the kernel shows a setting."""
    try:
        found = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
