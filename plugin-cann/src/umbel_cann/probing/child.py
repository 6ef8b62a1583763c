"""The process that makes the calls: `python -m umbel_cann.probing.child`.

It is told what to try by one line of JSON on stdin, and answers with one line for each probe on
what was stdout: the vendor's libraries may write there, and then write to stderr. What was
under way when it died is what killed it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
from umbel.errors import UmbelError

from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.probing.cases import probes
from umbel_cann.probing.probe import Probe
from umbel_cann.probing.trial import Trial
from umbel_cann.runtime import PROCESS, Npu

ALWAYS = ("Add", "Mm")  # operators that are tried again after a failure


@attrs.frozen(eq=False)
class Child:
    """What is tried, and who hears of it."""

    trial: Trial
    working: dict[str, Probe]  # by name
    out: Any

    def say(self, **told: object) -> None:
        print(json.dumps(told), file=self.out, flush=True)

    def run(self, wanted: list[Probe]) -> None:
        """All, or up to a failure after which others fail that worked before."""
        for probe in wanted:
            self.say(begin=probe.name)
            why = self.trial.why_not(probe)
            self.say(probe=probe.name, why=why)
            if why is None:
                self.working[probe.name] = probe
            elif not self._sound(probe):
                return

    def _sound(self, failed: Probe) -> bool:
        """Whether what worked before still does: its operator with another dtype, and two of
        those that everything needs."""
        names = (*ALWAYS, failed.operator)
        again = [p for p in self.working.values() if p.operator in names]
        return bool(again) and all(self.trial.why_not(p) is None for p in again)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    try:
        acl = PROCESS.start(Toolkit(Path(order["toolkit"])))
        npu = Npu(acl, order["index"], timeout=order["limit"])
        trial = Trial(npu)
        all_probes = {probe.name: probe for probe in probes()}
        working = {name: all_probes[name] for name in order["working"]}
        child = Child(trial, working, out)
        child.say(soc=npu.soc, probes=list(all_probes))
        child.run([p for name, p in all_probes.items() if name not in order["known"]])
        out.close()  # all is said
        trial.close()
        PROCESS.end()
    except UmbelError as error:
        told = {"failed": error.what, "do": error.do}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()
