"""The numbers of threads that `umbel numa tune` found best, remembered for this machine.

They are kept in one file of the user's, by the machine (its nodes and CPUs, as granted), by the
options that were given, and by how large the model is: all decide what a step waits for, memory
or arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from umbel.errors import UmbelError

from umbel_numa.options import OPTIONS
from umbel_numa.topology import Topology

log = logging.getLogger("umbel")

Counts = tuple[int, int]  # threads that decode, and that read prompts


def path() -> Path:
    """Where the file is, or would be."""
    home = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    root = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser(home)
    return Path(root) / "umbel" / "numa.json"


def machine(topology: Topology) -> str:
    """The same for the same nodes and CPUs, and quota."""
    nodes = [[node.number, node.cpus, node.cores] for node in topology.nodes]
    told = json.dumps([nodes, topology.quota])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def way(options: Mapping[str, Any]) -> str:
    """What was asked for, beside numbers of threads; empty: nothing."""
    others = (o for o in OPTIONS if not o.name.startswith("threads"))
    given = ((o, options.get(o.name, o.default)) for o in others)
    return " ".join(f"{o.name}={value}" for o, value in given if value != o.default)


def size_class(nbytes: int) -> str:
    """Models of which one is less than twice as large as the other: the power of two below."""
    return f"{max(nbytes, 1).bit_length() - 1}"


@attrs.define
class Records:
    """Those of one machine and way, by the class of size."""

    name: str  # the machine, and the way
    counts: dict[str, Counts] = attrs.field(factory=dict)

    @classmethod
    def of(cls, topology: Topology, way: str = "") -> Records:
        name = f"{machine(topology)} {way}".strip()
        return cls(name, _counts(load().get(name)))

    def threads(self) -> list[int]:
        """All numbers of threads among them."""
        return [n for counts in self.counts.values() for n in counts]

    def best(self, nbytes: int) -> Counts | None:
        """What is known of models of that size."""
        return self.counts.get(size_class(nbytes))

    def remember(self, nbytes: int, counts: Counts) -> None:
        self.counts[size_class(nbytes)] = counts
        save(self.name, self.counts)

    def forget(self) -> bool:
        """All of this machine, whatever was asked for; whether there was anything."""
        machine = self.name.partition(" ")[0]
        known = [name for name in load() if name.partition(" ")[0] == machine]
        for name in known:
            save(name, {})
        self.counts = {}
        return bool(known)


def _counts(found: Any) -> dict[str, Counts]:
    """Of what the file has: what was changed by hand may be anything."""
    counts = {}
    for name, pair in found.items() if isinstance(found, dict) else ():
        good = isinstance(pair, list) and len(pair) == 2
        if good and all(type(n) is int and n > 0 for n in pair):
            counts[name] = (pair[0], pair[1])
    return counts


def load() -> dict[str, Any]:
    try:
        found = json.loads(path().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read, and is not used: %s", path(), error)
        return {}
    return found if isinstance(found, dict) else {}


def save(name: str, value: dict[str, Any]) -> None:
    """Puts it in the place of what was known under that name."""
    known = {**load(), name: value}
    if not value:
        del known[name]
    file = path()
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        if file.parts[0] == "~":
            msg = "there is no home folder"
            raise OSError(msg)
        if not known and not file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        beside.replace(file)
    except OSError as error:
        msg, do = "what was found cannot be remembered", "set XDG_CONFIG_HOME to another folder"
        raise UmbelError(msg, where=file, got=error.strerror or error, do=do) from error
