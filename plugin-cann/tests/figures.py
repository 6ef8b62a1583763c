"""Run as a program, with a simulated chip: models on it against an independent implementation.

It prints for each model how far its logits are off, relative to their size, prompt in one step
and token by token; and what does not run on the chip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from umbel import gguf, plugins
from umbel.loading import targets
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.runner import Runner, Settings
from umbel.state import Sequence

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"


def figures(name: str, **settings: object) -> dict[str, object]:
    known, _, kind = name.partition("-e256-")  # of quantised weights all are in one file
    with (
        np.load(ORACLES / (f"{known}-e256.npz" if kind else f"{known}.npz")) as arrays,
        gguf.open(ORACLES / f"{name}.gguf") as file,
    ):
        found = architecture(file.get("general.architecture", str))
        given = Settings(**{"ctx": 64, "parallel": 2} | settings)
        definition = ModelDefinition(file, found, OPS)
        runner = Runner(definition, targets("cann:0", None, None, False), given)
        expected, ids = arrays[kind or "ref"], arrays["ids"].tolist()
        whole = runner.forward(Sequence(), ids, every=True)
        sequence = Sequence()
        one_by_one = np.concatenate([runner.forward(sequence, [i]) for i in ids])
        plans = [runner.plan(shape) for shape in runner.usual]
        elsewhere = {p.node.op.name: p.reason for plan in plans for p in runner.elsewhere(plan)}
        runner.close()
    size = float(np.abs(expected).max())
    off = [float(np.abs(a - expected).max()) / size for a in (whole, one_by_one)]
    return {"off": max(off), "elsewhere": elsewhere}


if __name__ == "__main__":
    print(json.dumps({name: figures(name) for name in sys.argv[1:]}))
    plugins.get().close()
