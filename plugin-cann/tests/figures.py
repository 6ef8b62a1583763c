"""Run as a program, with a simulated chip: models on it against an independent implementation.

It prints for each model how far its logits are off, relative to their size: all of a text in
one step, token by token, and beside another text; and how far they are from those of the host
with the same kind of cache. Further, how many splits each of the steps
has on the chip that are planned at load (a token, and the longest prompt); and what does not
run there. Words like `kv=f32` are settings.
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
# where there are several
RESULTS = {"phi3-longrope": "ref_long"}


def figures(name: str, **settings: object) -> dict[str, object]:
    known, _, kind = name.partition("-e256-")  # of quantised weights all are in one file
    key = kind or RESULTS.get(name, "ref")
    with (
        np.load(ORACLES / (f"{known}-e256.npz" if kind else f"{known}.npz")) as arrays,
        gguf.open(ORACLES / f"{name}.gguf") as file,
    ):
        found = architecture(file.get("general.architecture", str))
        definition = ModelDefinition(file, found, OPS)
        expected, ids = arrays[key], arrays["ids"].tolist()
        ids = ids[: len(expected)]
        runner = _runner(definition, "cann:0", settings)
        ways = _ways(runner, ids)
        plans = [runner.plan(shape) for shape in runner.usual]
        elsewhere = {p.node.op.name: p.reason for plan in plans for p in runner.elsewhere(plan)}
        npu = runner.targets[0]
        splits = [sum(step.target is npu for step in plan.steps) for plan in plans]
        runner.close()
        host = _runner(definition, "host", {"kv": "f16"} | settings)
        beside = _ways(host, ids)
        host.close()
    size = float(np.abs(expected).max())
    off = [float(np.abs(way - expected).max()) / size for way in ways]
    from_host = [float(np.abs(a - b).max()) / size for a, b in zip(ways, beside, strict=True)]
    distances = {"off": max(off), "from_host": max(from_host)}
    return {**distances, "splits": splits, "elsewhere": elsewhere}


def _runner(definition: ModelDefinition, device: str, settings: dict[str, object]) -> Runner:
    given = Settings(**{"ctx": 64, "parallel": 4} | settings)
    return Runner(definition, targets(device, None, None, False), given)


def _ways(runner: Runner, ids: list[int]) -> list[np.ndarray]:
    return _encoded(runner, ids) if runner.encodes else _decoded(runner, ids)


def _decoded(runner: Runner, ids: list[int]) -> list[np.ndarray]:
    whole = runner.forward(Sequence(), ids, every=True)
    sequence, one, other = Sequence(), Sequence(), Sequence()
    one_by_one = np.concatenate([runner.forward(sequence, [i]) for i in ids])
    pairs = [runner.decode([one, other], [i, j]) for i, j in zip(ids, ids[::-1], strict=True)]
    return [whole, one_by_one, np.stack([pair[0] for pair in pairs])]


def _encoded(runner: Runner, ids: list[int]) -> list[np.ndarray]:
    return [runner.hidden([ids])[0], runner.hidden([ids, ids[::-1]])[0]]


if __name__ == "__main__":
    settings = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    names = [word for word in sys.argv[1:] if "=" not in word]
    print(json.dumps({name: figures(name, **settings) for name in names}))
    plugins.get().close()
