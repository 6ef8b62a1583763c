"""What `umbel numa report` finds out: where weights lie, who reads them, where time goes."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

import umbel_numa
from umbel_numa import measure
from umbel_numa.cut import cut
from umbel_numa.engine import Engine
from umbel_numa.library import library, no_threads
from umbel_numa.placement import Placement, balancing
from umbel_numa.topology import Topology, read
from umbel_numa.use import busiest, counted

if TYPE_CHECKING:
    import umbel

    from umbel_numa.engine import Use
    from umbel_numa.program import Program
    from umbel_numa.weights import NativeWeight

_ROUNDS, _RUNS = 500, 5  # barriers in a row, and how often: the best counts


@attrs.frozen
class Node:
    """What is so of one node while one sequence is decoded."""

    node: int  # the kernel's number; -1: memory may lie anywhere
    threads: int
    threads_prefill: int
    resident: int | None  # bytes of weights there, by the kernel's answer; None: it gives none
    read: int  # bytes of weights that its threads read for each token
    gb_s: float
    local: float | None  # the part of these that lies there


@attrs.frozen
class Barrier:
    """Nanoseconds of one, with two levels and with one."""

    threads: int
    two_level: float
    flat: float


@attrs.frozen
class Experts:
    """The part of all reads of experts that the busiest node has, on the average."""

    rows: float
    whole: float  # as many on each node
    by_use: float  # dealt by how often they were chosen

    @property
    def better(self) -> str:
        return "rows" if self.rows <= min(self.whole, self.by_use) else "whole"


@attrs.frozen
class Report:
    model: str
    nbytes: int
    machine: dict[str, Any]
    engine: dict[str, Any]
    nodes: tuple[Node, ...]
    misplaced: int
    times: measure.Times
    speeds: tuple[measure.Speed, ...]
    barriers: tuple[Barrier, ...]
    experts: Experts | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all of it, and the rates that follow."""
        found = attrs.asdict(self)
        for row, speed in zip(found["speeds"], self.speeds, strict=True):
            row |= {"s_pp": speed.s_pp, "s_tg": speed.s_tg, "s": speed.s}
        if self.experts:
            found["experts"]["better"] = self.experts.better
        return {"umbel_numa_report": 1, **found}


def examine(
    model: umbel.Model, pp: int, tg: int, batches: Sequence[int] = (1,), *, sweep: bool = False
) -> Report:
    """Of an open model on this engine."""
    engine = umbel_numa.opened()
    alone = measure.best(model, pp, tg)
    times, program = measure.times(engine, lambda: measure.speed(model, 0, tg))
    speeds = tuple(alone if b == 1 else measure.best(model, pp, tg, b, runs=1) for b in batches)
    used = _chosen(model)
    use = counted(model, engine, pp) if len(engine.placement.numbers) > 1 else {}
    topology = read()
    return Report(
        model=model.file.path.name,
        nbytes=sum(t.nbytes for t in model.file.tensors.values()),
        machine=_machine(topology),
        engine=umbel_numa.details(engine),
        nodes=tuple(_nodes(engine, program, alone.s_tg, used)),
        misplaced=engine.misplaced(),
        times=times,
        speeds=speeds,
        barriers=tuple(barriers(engine.placement, engine, sweep=sweep)),
        experts=_experts(engine, used, use),
    )


def _machine(topology: Topology) -> dict[str, Any]:
    nodes = [attrs.asdict(node) for node in topology.nodes]
    told = {"system": platform.platform(), "processor": _processor()}
    return {**told, "nodes": nodes, "quota": topology.quota, "numa_balancing": balancing()}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def _chosen(model: umbel.Model) -> tuple[int, int]:
    """Of how many experts a token has how many: (used, all); (1, 1): there are none."""
    metadata = model.file.metadata
    kind = metadata.get("general.architecture")
    used, all_ = (metadata.get(f"{kind}.expert_{n}count") for n in ("used_", ""))
    return (used, all_) if isinstance(used, int) and isinstance(all_, int) and all_ else (1, 1)


def _nodes(
    engine: Engine, program: Program | None, rate: float, chosen: tuple[int, int]
) -> Iterator[Node]:
    """`rate`: tokens per second."""
    factors, numbers = (program.factors if program else ()), engine.placement.numbers
    resident, prefill = engine.resident(), engine.shares(engine.count(1 << 30))
    for node, (number, threads) in enumerate(zip(numbers, engine.shares(), strict=True)):
        read, here, known = 0.0, 0.0, True
        for weight, segment in ((w, s) for w in factors for s in w.segments):
            part = _part(weight, chosen) * segment.nbytes
            if segment.number < 0:  # all threads read parts of it
                part *= threads / engine.threads
            elif segment.node != node:
                continue
            lies = segment.lies()
            known = known and lies is not None
            there, whole = (lies or {}).get(number, 0), sum((lies or {}).values())
            read += part
            here += part * there / max(whole, 1)
        local = here / read if known and read and number >= 0 else None
        kept = resident[node] if resident else None
        gb_s = read * rate / 1e9
        yield Node(number, threads, prefill[node], kept, round(read), gb_s, local)


def _part(weight: NativeWeight, chosen: tuple[int, int]) -> float:
    """The part of a weight that is read for one token."""
    used, all_ = chosen
    return used / all_ if len(weight.tensor.shape) == 3 else 1.0


def barriers(where: Placement, engine: Engine, *, sweep: bool) -> Iterator[Barrier]:
    """For the threads that decode; for all numbers up to those there are in a `sweep`."""
    most = len(where.cpus)
    counts = [n for n in range(len(where.numbers), most + 1) if not n & n - 1 or n == most]
    for count in counts if sweep else [engine.threads]:
        cpus, nodes = _taking_part(where, engine.shares(count))
        lists = [np.array(n, np.int32) for n in (cpus, nodes)]
        places = [n.ctypes.data for n in lists]
        runs = [[_time(count, places, flat) for flat in (0, 1)] for _ in range(_RUNS)]
        yield Barrier(count, *map(min, zip(*runs, strict=True)))


def _time(threads: int, places: Sequence[int], flat: int) -> float:
    ns = float(library().un_barrier_time(threads, *places, flat, _ROUNDS))
    if ns < 0:
        raise no_threads(threads, int(ns))
    return ns


def _taking_part(where: Placement, shares: Sequence[int]) -> tuple[list[int], list[int]]:
    """The CPUs and nodes of the first threads of each node."""
    taken: list[tuple[int, int]] = []
    for node, share in enumerate(shares):
        own = [cpu for cpu, n in zip(where.cpus, where.nodes, strict=True) if n == node]
        taken += [(cpu, node) for cpu in own[:share]]
    return [cpu for cpu, _ in taken], [node for _, node in taken]


def _experts(engine: Engine, chosen: tuple[int, int], use: Use) -> Experts | None:
    """By count of what is read; where no use was counted, were experts chosen by chance. Both
    ways nothing but activations crosses between nodes: the busiest node decides."""
    used, all_ = chosen
    shares = engine.shares()
    if all_ == 1 or len(shares) == 1:
        return None
    layers = {tuple(counts) for counts in use.values() if len(counts) == all_} or {(1,) * all_}

    def part(by_use: bool) -> float:
        cuts = [
            cut(shares, all_, 1, copies=False, whole=True, use=counts if by_use else None)
            for counts in layers
        ]
        parts = [busiest(n, used, c.first) for n, c in zip(layers, cuts, strict=True)]
        return sum(parts) / len(parts)

    return Experts(max(shares) / sum(shares), part(False), part(True))
