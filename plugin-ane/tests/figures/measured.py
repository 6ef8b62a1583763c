"""Run as a program: one start of a GPT-2, and what it took, as JSON.

measured.py MODEL: a prompt of 20 tokens and one of 300, each with 8 tokens of decode. What is
evaluated is counted by the simulator, not by the plugin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from planned import planning
from umbel_ane.drivers.simulator import Simulator

STRICT = "orion-m4-macos15"
DECODED = 8


def measure(path: Path) -> dict[str, object]:
    with planning(path, STRICT) as (model, opened):
        driver = opened.driver
        assert isinstance(driver, Simulator)
        for length in (20, 300):
            with model.open() as session:
                session.feed([1 + i for i in range(length)])
                logits = session.feed([5])  # the decode program is there from here on
                dispatches, ms = driver.clock.counts["evaluate"], driver.clock.ms
                for _ in range(DECODED - 1):
                    logits = session.feed([int(logits.argmax())])
        steps = DECODED - 1
        dispatched = (driver.clock.counts["evaluate"] - dispatches) / steps
        spent = (driver.clock.ms - ms) / steps
        loaded = list(opened.programs.loaded.values())
        verdicts = opened.programs.verdicts
        return {
            "compiles": driver.compiles,
            "children": opened.programs.child.compiles,
            "dispatches per token": dispatched,
            "ms per token": spent,
            "programs": len(loaded),
            "reported": sum(
                bool(p.program.where) and verdicts[p.program.text].passed
                for p in loaded
                if p.program.text in verdicts
            ),
            "canaries": opened.status()["canaries"],
        }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
