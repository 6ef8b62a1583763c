"""Run as a program, with a simulated chip: one of the figures of `report.py`, as JSON."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import experts
import stepping
import umbel
from umbel import gguf, plugins
from umbel.graph import Role
from umbel.ops import OPS
from umbel.plan import Plan
from umbel.runner import Runner
from umbel.state import Sequence
from umbel_cann import _open, compile
from umbel_cann.ops import flash
from umbel_kit.coverage import table

STEPS = 8
MADE = ("descriptors", "executors", "phase 1", "mallocs")


def large(path: str, steps: str) -> dict[str, float]:
    """A model that is large: its memory, what a token reads of it, and how fast that is."""
    runner = stepping.open_model(path, ctx=2048, parallel=1)
    target, sequence, last = runner.targets[0], Sequence(), 0.0
    plan = runner.plan(runner.usual[0])
    for _ in range(int(steps)):
        before = stepping.counters()["busy"]
        runner.decode([sequence], [1])
        last = stepping.counters()["busy"] - before
    needed = sum(part.nbytes(target) for part in (runner.weights, runner.states, runner.arenas))
    rooms = stepping.programs().scratch, stepping.programs().workspace
    needed += sum(room.nbytes for room in rooms)
    status = _open["cann:0"].status()
    with gguf.open(path) as file:
        inside = sum(t.nbytes for t in file.tensors.values())
    found = {
        "mallocs": stepping.counters()["mallocs"],
        "reserved": status["memory_reserved"],
        "needed": needed,
        "file": inside,
        "read": weights_read(plan),
        "seconds": last,
        "launches": sum(len(p.launches) for p in stepping.programs().made.values()),
    }
    runner.close()
    return found


def weights_read(plan: Plan) -> int:
    """Bytes of weights that a step reads: of a table that is looked up, some rows."""
    read: dict[int, float] = {}
    for step in plan.steps:
        for node in step.graph.nodes:
            for t in (t.storage for t in node.inputs if t.storage.role is Role.WEIGHT):
                slot = step.graph.slots[t]
                place, nbytes = slot.buffer.handle + slot.offset, float(slot.buffer.nbytes)
                if node.op is OPS["get_rows"]:
                    nbytes *= node.size / t.size
                read[place] = max(read.get(place, 0), nbytes)
    return round(sum(read.values()))


def mixture(path: str) -> list[dict[str, Any]]:
    """Of a mixture of experts: what it takes and costs with few bits, and with float16."""
    return experts.mixture(path)


def loads(path: str, count: str) -> dict[str, list[int]]:
    """Bytes reserved after each of so many loads of a model."""
    told = []
    for _ in range(int(count)):
        with umbel.load(path, device="cann:0") as model:
            list(model.generate("Once", max_tokens=2))
        del model
        gc.collect()
        told.append(_open["cann:0"].status()["memory_reserved"])
    return {"reserved": told}


def decode(path: str, how: str, dtype: str = "auto") -> dict[str, Any]:
    """Decode steps of a model, `single` (each node by itself), `fused` or `recorded`."""
    if how == "single":
        compile.steps = lambda reads, to: ((i, (n,), None) for i, n in enumerate(reads.nodes))
        compile.pairs, compile.rounded = (lambda *_: {}), (lambda *_: frozenset())
        flash.whole, compile.blocked = (lambda to, node: False), (lambda *_: {})
    runner = stepping.open_model(path, dtype, ctx=128)
    if how != "recorded":
        stepping.capture(False)
    sequence = Sequence()
    for i in range(4):
        runner.decode([sequence], [i])
    before = stepping.counters()
    for i in range(STEPS):
        runner.decode([sequence], [i])
    after = stepping.counters()
    found: dict[str, Any] = {k: (after[k] - before.get(k, 0)) / STEPS for k in after}
    found["made"] = sum(found[key] for key in MADE)
    made = stepping.programs().made
    program = made[max(made)]
    found["per step"] = len(program.launches)
    found["seconds per call"] = host_time(program)
    calls = stepping.count_calls()
    for i in range(3):
        calls.clear()
        runner.decode([sequence], [i])
    found["calls"] = sum(calls.values())
    runner.close()
    return found


def depth(path: str, dtype: str) -> dict[str, dict[str, float]]:
    """A token with 2,048 cells before it: what is launched, read and written for it, where rows
    are gathered and in blocks."""
    found = {}
    runner = stepping.open_model(path, dtype, ctx=2304, parallel=1)
    cache, sequence = runner.cache, Sequence()
    cache.commit(sequence, [1] * 2048, cache.begin(sequence, 2048))
    for able in (False, True):
        stepping.blocks(able)
        for _ in range(2):
            runner.decode([sequence], [1])
            cache.rewind(sequence, 2048)
        before = stepping.counters()
        runner.decode([sequence], [1])
        cache.rewind(sequence, 2048)
        after = stepping.counters()
        (program,) = [
            p for (_, blocks), p in stepping.programs().made.items() if blocks == able
        ]
        told = {key: after[key] - before[key] for key in ("bytes", "busy")}
        found["blocks" if able else "rows"] = {"launches": len(program.launches), **told}
    runner.close()
    return found


def host_time(program: Any) -> float:
    """Of one call in a replay, by the clock; a function that only returns 0 stands in for the
    vendor's. Copies of rows, where a chip has no scatter, are not counted."""
    npu, room = stepping.programs().npu, stepping.programs().workspace
    stub = ctypes.CDLL("libm.so.6").fegetround
    stub.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    calls = [launch for launch in program.launches if launch.kept]
    for call in calls:
        call._second = stub
    if program._kept:
        program._kept = tuple(call.kept for call in calls)
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        if program._kept:
            program._again(npu, None)
        else:
            for call in calls:
                call.run(npu, room)
        best = min(best, time.perf_counter() - begin)
    program.drop(npu)  # it is made anew, with the vendor's functions
    return best / len(calls)


def whole(*models: str) -> dict[str, Any]:
    """Of each model: the splits of a decode step, and what does not run on the chip."""
    return {Path(path).stem: _placed(stepping.open_model(path)) for path in models}


def _placed(runner: Runner) -> dict[str, Any]:
    plans = [runner.plan(step) for step in runner.usual]
    elsewhere = {p.node.op.name for plan in plans for p in runner.elsewhere(plan) if p.node.op}
    npu = runner.targets[0]
    splits = max(sum(step.target is npu for step in plan.steps) for plan in plans)
    found = {"splits": splits, "elsewhere": sorted(elsewhere)}
    runner.close()
    return found


def operations() -> dict[str, list[str]]:
    """Each of the core's operations: what the chip answers to the cases of the suite."""
    found: dict[str, list[str]] = {}
    target = plugins.get().open(plugins.get().find("cann:0"))
    for line in table([target], OPS).splitlines():
        if line.startswith("| `"):
            name, _, answer = line.strip("| ").split(" | ", 2)
            found.setdefault(name.strip("`"), []).append(answer)
    return found


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(globals()[what](*arguments)))
    plugins.get().close()
