"""Weights that are written after a program was compiled: three rungs, tried in turn.

1. The staged file is overwritten and the program loaded again. Orion's paper (arXiv 2603.06728)
   says that this is enough; its own documents, maderix on an M5 and libane found the old
   weights still at work. So a canary tells: the result must be that of the new weights, and not
   bit for bit what it was.
2. The weights become inputs of the programs: once more they are compiled, and never again.
3. The programs are compiled anew, within what a process may compile.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence

from umbel.errors import DeviceError
from umbel.hookspecs import SplitGraph

from umbel_ane.compiler.programs import Compiled
from umbel_ane.runtime.steps import Split, Splits

log = logging.getLogger("umbel")


class Rung(enum.Enum):
    SAME = "nothing had changed"
    REWRITTEN = "rewritten in place"
    HELD = "given as inputs"
    COMPILED = "compiled anew"


def update(splits: Splits, graph: SplitGraph) -> Rung:
    """After weights of a split were changed in memory: its programs compute with the new ones.

    Weights that are inputs already are only written again, at the next step.
    """
    split = splits.ready(graph)
    if split.held:
        for feed in split.weights:
            feed.stale = True
        return Rung.HELD
    fresh = splits.compile(graph, False)
    if not _changed(split, fresh):
        return Rung.SAME
    if _rewrite(splits, split, fresh):
        return Rung.REWRITTEN
    splits.forget(graph.uid)
    try:
        splits.ready(graph, held=True)
    except DeviceError as error:
        log.warning("weights cannot be inputs of programs: %s", error.what)
        splits.ready(graph, held=False)
        return Rung.COMPILED
    return Rung.HELD


def _changed(split: Split, fresh: Sequence[Compiled]) -> list[int]:
    """The numbers of the programs whose weights are others now: their texts tell, which name
    the contents."""
    pairs = enumerate(zip(split.programs, fresh, strict=True))
    return [i for i, (old, new) in pairs if old.program.text != new.text]


def _rewrite(splits: Splits, split: Split, fresh: Sequence[Compiled]) -> bool:
    """The first rung, for all programs of a split; False at the first that stays stale."""
    for i in _changed(split, fresh):
        if not splits.programs.rewrite(split.programs[i], fresh[i]):
            told = "%s computes with its old weights after a reload"
            log.info(told, split.programs[i].name)
            return False
    return True
