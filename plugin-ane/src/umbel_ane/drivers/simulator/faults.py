"""Faults on request, and the crashes of a process.

UMBEL_ANE_FAULT is a list with commas. `compile:3` fails the third compile, `compile:3+` that
and all later ones, `compile` all of them; calls are counted by each simulator from 1 on.

    compile[:N]         ANECCompile() FAILED
    load[:N]            program load failure, code 6
    evaluate[:N]        Program Inference error, 0x1d
    surface[:N]         no memory for a surface
    nan[:N]             evaluation N leaves NaN in its first output
    canary[:N]          evaluation N gives the negative of each value
    stale               a reload never heeds rewritten weights, whatever the profile says
    crash:CALL[:N]      the call (compile, load, evaluate) takes the process with it
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping

import attrs
from umbel.errors import OptionError

VARIABLE = "UMBEL_ANE_FAULT"
KINDS = ("compile", "load", "evaluate", "surface", "nan", "canary", "stale")
CRASHING = ("compile", "load", "evaluate")


class SimulatedCrash(RuntimeError):  # noqa: N818 - it stands for the end of a process
    """Here a real process would be gone. No error of Umbel's: nobody may catch and go on."""


@attrs.frozen
class When:
    """Which calls: the one numbered `first`, those from it on with `later`; 0: all."""

    first: int = 0
    later: bool = False

    def hits(self, number: int) -> bool:
        return not self.first or number == self.first or (self.later and number > self.first)


@attrs.frozen
class Faults:
    """What was asked for, and how many calls of each kind there were."""

    asked: Mapping[str, When] = attrs.field(factory=dict)
    _calls: Counter[str] = attrs.field(factory=Counter, init=False)

    @classmethod
    def from_environment(cls) -> Faults:
        text = os.environ.get(VARIABLE, "")
        return cls(dict(_one(part.strip()) for part in text.split(",") if part.strip()))

    def hit(self, kind: str) -> bool:
        """Counts a call of that kind; whether it shall fail."""
        self._calls[kind] += 1
        when = self.asked.get(kind)
        return when is not None and when.hits(self._calls[kind])

    def crash(self, call: str) -> None:
        """Counts a call; ends the process where that was asked for."""
        if self.hit(f"crash:{call}"):
            msg = f"{VARIABLE} asked for a crash in {call}"
            raise SimulatedCrash(msg)


def _one(text: str) -> tuple[str, When]:
    match = re.fullmatch(r"(crash:)?([a-z]+)(?::([1-9][0-9]*)(\+)?)?", text)
    if match is None or match[2] not in (CRASHING if match[1] else KINDS):
        msg = "a fault is asked for that the simulator does not have"
        crashes = (f"crash:{call}" for call in CRASHING)
        known = ", ".join((*KINDS, *crashes))
        raise OptionError(msg, where=VARIABLE, expected=f"{known}, each with :N", got=text)
    when = When(int(match[3] or 0), match[4] is not None)
    return f"{match[1] or ''}{match[2]}", when
