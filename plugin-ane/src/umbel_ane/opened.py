"""An open device: all its parts, and what it tells of itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from umbel.graph import Tensor
from umbel.hookspecs import DeviceInfo, SplitGraph

from umbel_ane import costs
from umbel_ane.compiler.ir import Weight
from umbel_ane.compiler.lowering import Options, WeightOf, lower, unsupported
from umbel_ane.compiler.programs import Compiled, compile_split
from umbel_ane.drivers import Driver
from umbel_ane.drivers.choose import driver
from umbel_ane.memory import AneMemory, AneWeight
from umbel_ane.runtime.child import Child
from umbel_ane.runtime.held import held
from umbel_ane.runtime.ladder import Rung, update
from umbel_ane.runtime.programs import Programs
from umbel_ane.runtime.steps import Splits
from umbel_ane.runtime.surfaces import Pool

log = logging.getLogger("umbel")

TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
VERSION = "contents"  # keys of weights name their contents: none need be read for the names
LENGTHS = tuple(256 << i for i in range(10))


@attrs.frozen(eq=False)
class Opened:
    """One Neural Engine in use."""

    driver: Driver
    options: Options
    memory: AneMemory
    pool: Pool
    programs: Programs
    splits: Splits

    @classmethod
    def new(cls, name: str, options: Mapping[str, Any], simulator: str | None) -> Opened:
        """With a `simulator`, on that profile of it."""
        kind = f"simulator:{simulator}" if simulator else options["driver"]
        found = driver(kind)
        pool, child = Pool(found), Child(kind, found.profile.compile_limit)
        programs = Programs(name, found, pool, child, options["canary"] == "on")

        how = Options(options["head"], options["attention"])
        here, there = costs.head(found.profile.costs, 1)
        heads = how.head == "ane" or (how.head == "auto" and here < there)

        def compiled(graph: SplitGraph, as_inputs: bool) -> Sequence[Compiled]:
            lowered = lower(graph, found.profile, weights_of(graph), how)
            return compile_split(
                held(lowered) if as_inputs else lowered,
                found.profile,
                weights=options["weights"],
                version=VERSION,
            )

        memory = AneMemory(found.profile, heads)
        splits = Splits(compiled, programs, pool, memory.changes)
        return cls(found, how, memory, pool, programs, splits)

    def run(self, graph: SplitGraph) -> None:
        """A step computes with what its weights are now, also those that programs have baked
        in: what was written since then goes up the ladder first."""
        now, split = self.memory.changes.n, self.splits.ready(graph)
        if split.changes != now:
            rung = update(self.splits, graph)
            if rung is not Rung.SAME:
                log.info("weights of %s were written: %s", self.programs.device, rung.value)
            self.splits.ready(graph).changes = now
        self.splits.run(graph)

    def unsupported(self, node: Tensor) -> str | None:
        return unsupported(node, self.driver.profile, self.options)

    def info(self) -> DeviceInfo:
        most = self.driver.profile.max_dim
        return DeviceInfo(
            compute_dtype="f16",
            token_buckets=tuple(n for n in TOKENS if n <= most),
            length_buckets=tuple(n for n in LENGTHS if n <= most),
            opaque=True,
            details=self._details(),
        )

    def sync(self) -> None:
        """All is done as it is told: there is nothing to wait for."""
        self.splits.cancelled = False

    def close(self) -> None:
        self.splits.clear()
        self.programs.clear()
        self.pool.trim()
        self.driver.close()

    def _details(self) -> dict[str, object]:
        chip, profile = self.driver.info(), self.driver.profile
        lacks = {"drops_nan": True} if profile.drops_nan else {}
        return {
            "chip": chip.architecture,
            "cores": chip.cores,
            "engines": chip.engines,
            "system": chip.system,
            "driver": self.driver.name,
            "simulated": self.driver.simulated,
            "profile": profile.name,
            **lacks,
        }

    def status(self) -> Mapping[str, object]:
        """From any thread."""
        told = self._details() | self.programs.counts()
        told |= {"surface_bytes": self.pool.nbytes, "surfaces": self.pool.made}
        return told | dict(self.driver.status())


def weights_of(graph: SplitGraph) -> WeightOf:
    """The weights of a split by what the core has stored for them."""

    def weight(tensor: Tensor) -> Weight:
        buffer = graph.slots[tensor].buffer
        assert isinstance(buffer, AneWeight)
        return Weight((tensor.label, buffer.digest), buffer.rows)

    return weight
