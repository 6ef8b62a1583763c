"""The numbers of threads that `umbel numa tune` found best, remembered for this machine.

They are kept in one file of the user's, by the machine (its nodes and CPUs, as granted), by the
options that were given, and by how large the model is: all decide what a step waits for, memory
or arithmetic.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import attrs
from umbel.errors import UmbelError

from umbel_numa.library import FORCED
from umbel_numa.options import OPTIONS
from umbel_numa.topology import Topology

log = logging.getLogger("umbel")

Counts = tuple[int, int]  # threads that decode, and that read prompts
_told: set[Path] = set()  # files that cannot be read


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
    given = [(o, options.get(o.name, o.default)) for o in others]
    asked = [f"{o.name}={value}" for o, value in given if value != o.default]
    forced = os.environ.get(FORCED)
    return " ".join([*asked, f"kernels={forced}"] if forced else asked)


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


def of_all_ways(topology: Topology) -> list[Records]:
    """Those of this machine, whatever was asked for."""
    here, known = machine(topology), load()
    return [Records(k, _counts(v)) for k, v in known.items() if k.partition(" ")[0] == here]


def forget(topology: Topology) -> bool:
    """All of this machine; whether there was anything."""
    known = of_all_ways(topology)
    for records in known:
        save(records.name, {})
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
        if path() not in _told:
            _told.add(path())
            log.warning("%s cannot be read, and is not used: %s", path(), error)
        return {}
    return found if isinstance(found, dict) else {}


def save(name: str, value: dict[str, Any]) -> None:
    """Puts it in the place of what was known under that name."""
    known = {**load(), name: value}
    if not value:
        del known[name]
    if known or path().exists():
        with _beside() as file:
            file.write(json.dumps(known, indent=1).encode() + b"\n")
            file.flush()
            os.replace(file.name, path())


def check_writable() -> None:
    """Refuses before the work what could not be remembered after it."""
    with _beside():
        pass


@contextlib.contextmanager
def _beside() -> Iterator[IO[bytes]]:
    """A file beside ours, which may take its place; it is gone afterwards."""
    folder = path().parent
    try:
        if folder.parts[0] == "~":
            msg = "there is no home folder"
            raise OSError(msg)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        msg, do = "what was found cannot be remembered", "set XDG_CONFIG_HOME to another folder"
        raise UmbelError(msg, where=path(), got=error.strerror or error, do=do) from error
