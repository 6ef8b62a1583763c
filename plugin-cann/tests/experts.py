"""Run as a program, with a simulated chip: experts of few bits, by themselves, and in a model
against the host. One of its functions, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import stepping
from umbel import plugins
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME, F16, I32, dequantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel.plan import emit
from umbel.runner import Runner
from umbel.state import Sequence
from umbel_cann.acl.toolkit import toolkit
from umbel_cann.opened import Opened
from umbel_cann.ops import experts, few_bits
from umbel_cann.weights import quantised

MADE = ("descriptors", "executors", "phase 1", "mallocs")
MODEL = stepping.Size(2, wide=256, inner=256, experts=12, used=2)
TEXT = [1, 5, 9, 7, 30]


def products() -> list[dict[str, Any]]:
    """Errors and launches of products with few of many experts and with all, at once and in
    pieces, as where an operator takes few columns or memory is little."""
    opened, found = Opened.new(toolkit(), 0, "f16", 60.0), []
    cases = [
        (n, own, most, room)
        for n, own in ((1, 1), (1, 2), (2, 2), (3, 1), (5, 2))
        for most, room in ((65535, 1 << 20), (60, 4000))
    ]
    for uid, (name, case) in enumerate((n, c) for n in ("q4_1", "q8_0") for c in cases):
        n, own, experts.MOST, experts.ROOM = case
        few_bits.MOST = experts.MOST
        off, launches = _product(opened, uid, name, n, own)
        found.append({"name": name, "case": case, "off": off, "launches": launches})
    opened.close()
    return found


def _product(opened: Opened, uid: int, name: str, n: int, own: int) -> tuple[float, list[str]]:
    dtype, rng, kind = BY_NAME[name], np.random.default_rng(uid), opened.memory
    raw = stepping.encoded(dtype, rng.standard_normal((12, 40, 96)).astype(np.float32))
    values = rng.standard_normal((n, own, 96)).astype(np.float16)
    chosen = rng.integers(0, 12, (n, 2)).astype(np.int32)
    w = Tensor((12, 40, 96), dtype, Role.WEIGHT, "w")
    x = Tensor(values.shape, F16, Role.INPUT, "x")
    ids = Tensor(chosen.shape, I32, Role.INPUT, "ids")
    y = Builder(OPS).mul_mat_id(w, x, ids)
    slots = {t: Slot(kind.allocate(kind.alloc_size(t), "compute")) for t in (x, ids, y)}
    slots[w] = Slot(kind.store(w, raw))
    slots[x].buffer.write(0, values)
    slots[ids].buffer.write(0, chosen)
    opened.programs.run(SplitGraph(uid, (y,), (x, ids), (y,), slots))
    opened.sync()
    got = slots[y].buffer.read(0, y.nbytes).view(np.float16).reshape(y.shape)
    args = dequantise(raw, dtype), values.astype(np.float32), chosen
    expected = OPS["mul_mat_id"].reference(*args)
    error = np.square(got - expected).mean() / np.square(expected).mean()
    launches = [launch.operator for launch in opened.programs.made[uid, False].launches]
    return float(error), launches


def mixture(path: str) -> list[dict[str, Any]]:
    """A model against the host, and what a token costs: with few bits, and as where experts
    become float16."""
    expected, found = _expected(path), []
    for _ in range(2):
        runner = stepping.open_model(path)
        found.append({"off": _off(runner, expected), **_costs(runner)})
        runner.close()
        _no_stacks(runner)
    return found


def shared(path: str, split: str) -> dict[str, Any]:
    """The same on two devices."""
    emit.LEAST = 1000  # values of a matrix whose rows are shared
    runner = stepping.open_model(path, device="cann:0,cann:1", split=split)
    held = [runner.weights.nbytes(target) for target in runner.targets[:2]]
    found = {"off": _off(runner, _expected(path)), "weights": held}
    runner.close()
    return found


def fits(path: str) -> dict[str, str]:
    """What is said of a model that is loaded with few bits, and then with float16."""
    runner = stepping.open_model(path)
    runner.close()
    _no_stacks(runner)
    try:
        stepping.open_model(path).close()
    except OutOfMemoryError as error:
        return {"refused": str(error)}
    return {}


def _no_stacks(runner: Runner) -> None:
    """From here on the chip multiplies no stack of few bits."""
    few = quantised.form
    quantised.form = lambda t, chip: few(t, chip) if len(t.shape) < 3 else None
    runner.targets[0]._accepted.clear()


def _costs(runner: Runner) -> dict[str, Any]:
    sequence, per_token = Sequence(), dict[str, float]()
    for i in TEXT:
        before = stepping.counters()
        runner.decode([sequence], [i])
        per_token = {k: n - before.get(k, 0) for k, n in stepping.counters().items()}
    launches = [len(p.launches) for p in stepping.programs().made.values()][-1]
    for _ in range(3):
        before = stepping.counters()
        runner.forward(Sequence(), TEXT, every=True)
    made = sum(stepping.counters()[key] - before[key] + per_token[key] for key in MADE)
    elsewhere = runner.elsewhere(runner.plan(runner.usual[0]))
    return {
        "weights": runner.weights.nbytes(runner.targets[0]),
        "bytes": per_token["bytes"],
        "busy": per_token["busy"],
        "waits": per_token["synchronises"],
        "made": made,
        "launches": launches,
        "elsewhere": sorted({p.node.op.name for p in elsewhere if p.node.op}),
    }


def _expected(path: str) -> np.ndarray:
    host = stepping.open_model(path, device="host:0")
    logits = _logits(host)
    host.close()
    return logits


def _off(runner: Runner, expected: np.ndarray) -> float:
    return float(np.abs(_logits(runner) - expected).max() / np.abs(expected).max())


def _logits(runner: Runner) -> np.ndarray:
    """Of a text at once, token by token, and of two texts side by side."""
    whole = runner.forward(Sequence(), TEXT, every=True)
    sequence, one, other = Sequence(), Sequence(), Sequence()
    single = [runner.decode([sequence], [i]) for i in TEXT]
    pairs = [runner.decode([one, other], [i, j]) for i, j in zip(TEXT, TEXT[::-1], strict=True)]
    return np.concatenate([whole, *single, *pairs])


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(globals()[what](*arguments)))
    plugins.get().close()
