"""What becomes of the samples: placements, what is dropped, medians, ratios.

A virtual machine's processors may be moved between cores that share a cache and cores that do
not, and other work comes and goes. So each sample stands between two probes of the machine. The
probes of a whole run fall into groups, the placements; a sample counts where both of its probes
are in the same one and the processors were not wanted by others.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import attrs

GAP = 1.4  # between neighbours of one quantity that are not of one placement
RARE = 0.05  # of all probes: so few are no placement, but a disturbance
FOREIGN = 0.05  # of the processors' time that others may have had


@attrs.frozen
class Probe:
    """The machine at one moment."""

    latency: float  # from core to core, one way, ns
    bandwidth: float  # read by all threads, GB/s


@attrs.frozen
class Sample:
    """One measurement of one engine."""

    engine: str
    turn: int  # the engines are measured in turns
    seconds: float
    before: Probe
    after: Probe
    foreign: float  # share of the processors' time that was somebody else's


@attrs.frozen
class Placement:
    """A group of probes that are alike: up to which values, and how they are in the middle."""

    name: str
    middle: Probe
    probes: int


@attrs.frozen
class Placements:
    """The groups that the probes of a run fall into."""

    cuts: tuple[tuple[float, ...], tuple[float, ...]]  # of latency, of bandwidth
    known: dict[tuple[int, int], Placement]

    @classmethod
    def find(cls, probes: Sequence[Probe]) -> Placements:
        """Probes are of one group unless there is a gap between them, in either quantity."""
        cuts = _cuts(p.latency for p in probes), _cuts(p.bandwidth for p in probes)
        groups: dict[tuple[int, int], list[Probe]] = defaultdict(list)
        for probe in probes:
            groups[_band(probe, cuts)].append(probe)
        large = {k: g for k, g in sorted(groups.items()) if len(g) >= RARE * len(probes)}
        known = {}
        for name, (key, group) in zip(_names(), large.items(), strict=False):
            latency = statistics.median(p.latency for p in group)
            bandwidth = statistics.median(p.bandwidth for p in group)
            known[key] = Placement(name, Probe(latency, bandwidth), len(group))
        return cls(cuts, known)

    def of(self, probe: Probe) -> Placement | None:
        """None for what is so rare that it is no placement."""
        return self.known.get(_band(probe, self.cuts))

    def judge(self, sample: Sample, limit: float = FOREIGN) -> Placement | str:
        """Where a sample was taken, or why it does not count."""
        before, after = self.of(sample.before), self.of(sample.after)
        if before is None or before is not after:
            return "flip"
        return "load" if sample.foreign > limit else before


def _names() -> Iterable[str]:
    return (f"{chr(65 + n % 26)}{n // 26 or ''}" for n in itertools.count())


def _cuts(values: Iterable[float]) -> tuple[float, ...]:
    """In the middle of each gap."""
    pairs = itertools.pairwise(sorted(v for v in values if v > 0))
    return tuple(math.sqrt(a * b) for a, b in pairs if b / a > GAP)


def _band(probe: Probe, cuts: tuple[Sequence[float], Sequence[float]]) -> tuple[int, int]:
    latency = sum(probe.latency > cut for cut in cuts[0])
    return latency, sum(probe.bandwidth > cut for cut in cuts[1])


@attrs.frozen
class Summary:
    """The samples of one work in one placement."""

    placement: Placement
    seconds: dict[str, float]  # by engine: the median
    kept: dict[str, int]
    ratio: float | None  # theirs to ours in time, the median of the turns that have both
    turns: int


def summarise(
    samples: Iterable[Sample],
    placements: Placements,
    ours: str,
    theirs: str,
    limit: float = FOREIGN,
) -> tuple[list[Summary], Counter[str]]:
    """By placement; and how many samples were dropped, by reason."""
    dropped: Counter[str] = Counter()
    kept: dict[Placement, dict[str, dict[int, float]]] = {}
    for sample in samples:
        found = placements.judge(sample, limit)
        if isinstance(found, str):
            dropped[found] += 1
        else:
            engines = kept.setdefault(found, {ours: {}, theirs: {}})
            engines.setdefault(sample.engine, {})[sample.turn] = sample.seconds
    told = [_summary(where, kept[where], ours, theirs) for where in sorted(kept, key=_name)]
    return told, dropped


def _name(placement: Placement) -> str:
    return placement.name


def _summary(
    where: Placement, kept: dict[str, dict[int, float]], ours: str, theirs: str
) -> Summary:
    both = sorted(kept[ours].keys() & kept[theirs].keys())
    ratios = [kept[theirs][turn] / kept[ours][turn] for turn in both]
    some = {engine: turns for engine, turns in kept.items() if turns}
    return Summary(
        where,
        {engine: statistics.median(turns.values()) for engine, turns in some.items()},
        {engine: len(turns) for engine, turns in some.items()},
        statistics.median(ratios) if ratios else None,
        len(both),
    )


def number(value: float | None, unit: str = "") -> str:
    """Three digits that count, or a dash."""
    if value is None:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(digits, 3)}f}{unit}"


def share(value: float, limit: float) -> str:
    """As a percentage of a limit, or a dash where there is none."""
    return f"{100 * value / limit:.0f} %" if limit else "-"


def reasons(dropped: Counter[str]) -> str:
    """How many samples were dropped, and why: "0", or "3 (2 flip, 1 load)"."""
    parts = ", ".join(f"{n} {why}" for why, n in sorted(dropped.items()))
    return f"{dropped.total()} ({parts})" if parts else "0"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
