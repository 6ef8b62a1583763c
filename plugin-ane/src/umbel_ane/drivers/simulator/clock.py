"""The virtual clock and the counters: of a simulator, and of the process that it lives in."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import attrs

REPORT = "UMBEL_ANE_SIMULATOR_REPORT"


@attrs.define
class Process:
    """What all simulators of a process share, because a real process does."""

    compiles: int = 0  # that succeeded: those that the limit counts (constraint 5)
    poisoned: str = ""  # the operation after which every evaluation fails


PROCESS = Process()


def reset() -> None:
    """A process as new. For tests, which cannot start one each."""
    PROCESS.compiles, PROCESS.poisoned = 0, ""


@attrs.define(eq=False)
class Clock:
    """Virtual milliseconds by what they were spent on, and how often."""

    spent: Counter[str] = attrs.field(factory=Counter)  # compile, load, evaluate, surface
    counts: Counter[str] = attrs.field(factory=Counter)
    programs: dict[str, Counter[str]] = attrs.field(factory=dict)  # the same by identifier

    def tick(self, what: str, ms: float, program: str = "") -> None:
        self.spent[what] += ms  # type: ignore[assignment]
        self.counts[what] += 1
        if program:
            own = self.programs.setdefault(program, Counter())
            own[what] += 1
            own[f"{what}_ms"] += ms  # type: ignore[assignment]

    @property
    def ms(self) -> float:
        return float(sum(self.spent.values()))

    def report(self) -> dict[str, object]:
        return {
            "compiles": self.counts["compile"],
            "loads": self.counts["load"],
            "dispatches": self.counts["evaluate"],
            "surfaces": self.counts["surface"],
            "virtual_ms": round(self.ms, 4),
            "spent_ms": {what: round(float(ms), 4) for what, ms in self.spent.items()},
            "programs": {name: dict(own) for name, own in self.programs.items()},
        }

    def write(self, **more: object) -> None:
        """Into the file that was asked for, if one was."""
        if path := os.environ.get(REPORT):
            Path(path).write_text(json.dumps({**more, **self.report()}, indent=1), "utf-8")
