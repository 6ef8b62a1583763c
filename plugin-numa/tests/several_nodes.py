"""Machines of several nodes: as the kernel describes them in files, and pretended ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umbel_numa.placement import Placement
from umbel_numa.topology import ANYWHERE

GIB = 1 << 30
NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def node(
    number: int, cpus: str, distances: str, total: int = 64, free: int = 32
) -> dict[str, str]:
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


def siblings(count: int, apart: int) -> dict[str, str]:
    """Cores of two threads each, whose numbers lie `apart`."""
    return {
        f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % apart},{cpu % apart + apart}"
        for cpu in range(count)
    }


def numbers(*ranges: tuple[int, int]) -> tuple[int, ...]:
    return tuple(cpu for first, last in ranges for cpu in range(first, last + 1))


def neoverse(root: Path) -> Path:
    """Two sockets of 64 cores, one thread each."""
    files = {f"{NODES}/online": "0-1", f"{CPUS}/online": "0-127"}
    return write(root, files | node(0, "0-63", "10 20") | node(1, "64-127", "20 10", free=60))


def epyc(root: Path) -> Path:
    """Two sockets of 32 cores with two threads each, numbered as Linux does on x86."""
    files = {f"{NODES}/online": "0-1", f"{CPUS}/online": "0-127"}
    files |= node(0, "0-31,64-95", "10 32") | node(1, "32-63,96-127", "32 10")
    return write(root, files | siblings(128, 64))


def pretended(nodes: int, each: int = 1, **more: Any) -> Placement:
    """`each` threads on each of so many nodes. All are the kernel's node 0, and no thread is
    pinned."""
    belongs = tuple(n for n in range(nodes) for _ in range(each))
    more = {"mode": "distribute"} | more
    return Placement((ANYWHERE,) * len(belongs), belongs, (0,) * nodes, **more)
