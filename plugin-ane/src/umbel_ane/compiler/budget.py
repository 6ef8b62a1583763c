"""How many programs a model needs with all its buckets, before the first is compiled.

A process may compile a limited number (constraint 5), and each takes its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from umbel.errors import DeviceError

from umbel_ane.compiler.cutting import cut
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.passes import run
from umbel_ane.profile import Profile

SHARE = 3  # a model should need no more than a third of what a process may compile


@attrs.frozen
class Budget:
    """Programs by the name of the graph that needs them."""

    programs: Mapping[str, int]
    limit: int  # of the process; 0: none
    compile_ms: float  # of all

    @property
    def total(self) -> int:
        return sum(self.programs.values())

    @property
    def fits(self) -> bool:
        return not self.limit or self.total <= self.limit

    @property
    def warning(self) -> str | None:
        """Where it takes more than its share."""
        if not self.limit or self.total * SHARE <= self.limit:
            return None
        most = ", ".join(f"{name}: {n}" for name, n in self.programs.items())
        return f"{self.total} of {self.limit} compiles of this process are needed ({most})"


def budget(graphs: Iterable[tuple[str, Lowered]], profile: Profile) -> Budget:
    """Of graphs (a decode step, prefills) by their names; nothing of weights is read."""
    programs = {name: len(cut(run(g.graph, profile).graph, profile)) for name, g in graphs}
    ms = sum(programs.values()) * profile.costs.compile_ms
    return Budget(programs, profile.compile_limit, ms)


def require(planned: Budget, used: int = 0) -> None:
    """DeviceError where the process, which has compiled `used`, cannot compile them all."""
    if planned.limit and used + planned.total > planned.limit:
        msg = "the model needs more programs than a process may compile"
        worst = max(planned.programs, key=lambda name: planned.programs[name])
        got = f"{planned.total}, after {used}; {planned.programs[worst]} for {worst}"
        do = "use fewer buckets (a shorter context), or another device"
        raise DeviceError(msg, where=worst, expected=f"at most {planned.limit}", got=got, do=do)
