"""Run as a program: the figures that the plugin is to reach, on a simulated chip, as a table.

It ends with 1 if one of them is missed. It needs 300 MB of disk, 3 GB of memory, and minutes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "figures")]

import test_guards  # noqa: E402
from large import ORACLES, write_gpt2, write_llama  # noqa: E402
from planned import compiled, planning, steps  # noqa: E402
from umbel_ane import costs  # noqa: E402
from umbel_ane.compiler import ir, reference  # noqa: E402
from umbel_ane.compiler.builder import IRBuilder  # noqa: E402
from umbel_ane.compiler.emit import emit  # noqa: E402
from umbel_ane.compiler.estimate import counts  # noqa: E402
from umbel_ane.compiler.programs import Compiled  # noqa: E402
from umbel_ane.drivers.simulator.checks import CONSTRAINTS  # noqa: E402
from umbel_ane.mil.parse import parse  # noqa: E402
from umbel_ane.mil.text import write  # noqa: E402
from umbel_ane.profile import load  # noqa: E402
from umbel_ane.runtime import canary  # noqa: E402

STRICT = "orion-m4-macos15"
PREFILL = 256
CLOSE = 1e-3  # of the largest value


@attrs.frozen
class Row:
    what: str
    goal: str
    orion: str
    ours: str
    reached: bool = True


# GPT-2 124M


def starts(folder: Path) -> Iterator[Row]:
    """Two processes, one after the other, with one cache."""
    path = folder / "gpt2.gguf"
    write_gpt2(path)
    first, second = (_started(folder, path) for _ in range(2))
    made = first["compiles"] + first["children"]
    what = "compiles, GPT-2 124M shape: prompts of 20 and 300, 8 tokens of decode"
    yield Row(what, "≤ 10", "24 for prefill, more for decode", str(made), 0 < made <= 10)
    again = second["compiles"] + second["children"]
    yield Row("compiles at the second start", "0", "as the first", str(again), again == 0)
    each, ms = second["dispatches per token"], second["ms per token"]
    yield Row("dispatches per decode token", "≤ 12", "24 +", f"{each:g}", 0 < each <= 12)
    text = f"{ms:.2f} ms"
    yield Row("virtual time of a decode token, without the host's", "said", "5.76 ms", text)
    told, every = first["reported"], first["programs"]
    reached = told == every > 0
    what = "programs whose canary passed, of those that are loaded"
    yield Row(what, "all", "none", f"{told} of {every}; {first['canaries']}", reached)


def _started(folder: Path, path: Path) -> dict[str, Any]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, str(HERE / "figures" / "measured.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def products(folder: Path) -> Iterator[Row]:
    """A prefill as it is lowered, and with a matmul in place of each convolution."""
    with planning(folder / "gpt2.gguf", STRICT) as (model, opened):
        shape = model.runner.usual[0]._replace(tokens=PREFILL)
        programs = compiled(model, opened, model.runner.padded(shape))
    for what, ms in (("simulator's clock", _clock), ("compiler's estimate", _estimate)):
        conv = sum(ms(p, p.graph) for p in programs)
        turned = sum(ms(p, ir.rebuilt(p.graph, as_matmul)) for p in programs)
        text = f"{conv:.2f} ms against {turned:.2f} ms: {turned / conv:.2f} times"
        what = f"prefill {PREFILL} with convolutions against matmuls, whole model, {what}"
        yield Row(what, "less", "3x per operation", text, conv < turned)


def as_matmul(node: ir.Node) -> ir.Node:
    """A convolution as weight [1, 1, out, in] times x [B, 1, in, H S]."""
    if node.op != "conv1x1":
        return node
    x, weight = node.inputs
    (b, c, h, s), out = x.shape, node.shape[1]
    flat = ir.Node("reshape", (x,), (b, 1, c, h * s), x.dtype)
    table = attrs.evolve(weight, shape=(1, 1, out, c))
    how = {"transpose_x": False, "transpose_y": False}
    made = ir.Node("matmul", (table, flat), (b, 1, out, h * s), node.dtype, how)
    return ir.Node("reshape", (made,), node.shape, node.dtype, name=node.name)


def _clock(program: Compiled, graph: ir.Graph) -> float:
    names = [p.name for p in program.inputs], [p.name for p in program.outputs]
    made = emit(graph, *names, program.profile, program.version).program
    return costs.estimate(made, program.profile).ms


def _estimate(program: Compiled, graph: ir.Graph) -> float:
    return counts(graph, program.profile).ms


# other models


def adapters(folder: Path) -> Iterator[Row]:
    path = ORACLES / "llama-lora.gguf"
    os.environ["XDG_CACHE_HOME"] = str(folder / "adapters")
    with planning(ORACLES / "llama.gguf", STRICT, ctx=64, adapters=path) as (model, opened):
        model.logits([1, 5, 9])
        before = opened.driver.compiles
        model.unload_adapter("llama-lora")
        model.load_adapter(path, "again")
        model.logits([1, 5, 9], adapters={"again": -0.5})
        more = opened.driver.compiles - before
    reached = more == 0 < before
    yield Row("compiles at an adapter swap", "0", "0", f"{more} after {before}", reached)


def depth(folder: Path) -> Iterator[Row]:
    """32 layers; all steps of one sequence that can occur up to 4,096 tokens of context."""
    path = folder / "llama.gguf"
    write_llama(path)
    with planning(path, STRICT) as (model, opened):
        told = {p.key for step in steps(model, opened) for p in step.programs}
        runner, first = model.runner, model.runner.usual[0]
        most = max(runner.usual[1].tokens, 1)
        buckets = [n for n in runner.buckets if n <= most]
        lengths = [n for n in runner.lengths if n <= model.ctx]
        every = {
            p.key
            for tokens in buckets
            for length in lengths
            if tokens <= length
            for p in compiled(model, opened, first._replace(tokens=tokens, kv_length=length))
        }
    what = f"compiles, 32 layers, {model.ctx} of context, as `umbel ane explain` counts"
    yield Row(what, "< 40", "", str(len(told)), 0 < len(told) < 40)
    what = f"the same, every pair of {len(buckets)} buckets and {len(lengths)} lengths"
    yield Row(what, "< 40", "", str(len(every)), 0 < len(every) < 40)


def numbers(_: Path) -> Iterator[Row]:
    """Decode programs in float32, computed by coremltools from the text."""
    if importlib.util.find_spec("coremltools") is None:
        yield Row(
            "coremltools' values against ours", "≤ 1e-3", "", "coremltools is not here", False
        )
        return
    from umbel_ane.coreml.translate import evaluate

    for name in ("gpt2", "llama"):
        with planning(ORACLES / f"{name}.gguf", STRICT, ctx=64) as (model, opened):
            (program,) = compiled(model, opened, model.runner.usual[0])
            graph = ir.rebuilt(program.graph, _widener())
            names = [p.name for p in program.inputs], [p.name for p in program.outputs]
            made = emit(graph, *names, program.profile)
            files = {path: file.read() for path, file in made.weights.items()}
        given = {k: v.astype("f") for k, v in canary.inputs(program.inputs).items()}
        found = evaluate(parse(write(made.program)), files, given)
        wanted = reference.evaluate(graph, given)
        worst = max(
            float(np.abs(found[k] - v).max() / np.abs(v).max()) for k, v in wanted.items()
        )
        what = f"coremltools' values of {name}'s decode program against ours, float32"
        yield Row(what, "≤ 1e-3", "", f"{worst:.1e}", worst <= CLOSE)


def _widener() -> Callable[[ir.Node], ir.Node]:
    """Every value in float32. A constant that is read twice stays one."""

    def widened(node: ir.Node) -> ir.Node:
        return attrs.evolve(node, dtype=ir.FP32) if node.dtype == ir.FP16 else node

    return widened


# operations and constraints


def operations(_: Path) -> Iterator[Row]:
    """Each in a program of its own, written and read again."""
    done = {op for op in ir.OPS if _emitted(op)}
    missing = ", ".join(sorted(ir.OPS - done))
    text = f"{len(done)} of {len(ir.OPS)}" + (f"; not {missing}" if missing else "")
    reached = len(done) == len(ir.OPS) == 26
    orion = "27, one banned / no split, no pad"
    yield Row("operations of the IR that are emitted", "26 of 26", orion, text, reached)


# What MIL calls them, where it is another name; it has no neg, which is times -1.
SPELT = {"conv1x1": "conv", "slice": "slice_by_size", "neg": "mul"}


def _emitted(op: str) -> bool:
    b = IRBuilder()
    x, y = b.input("x", (1, 32, 1, 32)), b.input("y", (1, 32, 1, 32))
    weight = b.const(np.ones((32, 32, 1, 1)))
    made: dict[str, Callable[[], ir.Node]] = {
        "input": lambda: b.add(x, y),
        "const": lambda: b.add(x, weight),
        "conv1x1": lambda: b.conv1x1(x, weight),
        "matmul": lambda: b.matmul(x, y, transpose_x=True),
        "softmax": lambda: b.softmax(x),
        "cast": lambda: b.cast(b.cast(x, ir.FP32), ir.FP16),
        "reshape": lambda: b.reshape(x, (1, 1, 32, 32)),
        "transpose": lambda: b.transpose(x, (0, 3, 2, 1)),
        "slice": lambda: b.slice(x, (0, 0, 0, 0), (1, 16, 1, 16)),
        "split": lambda: b.split(x, 1, (16, 16))[1],
        "pad": lambda: b.pad(x, (0, 0, 0, 0), (0, 0, 0, 16)),
        **dict.fromkeys(ir.ELEMENTWISE, lambda: getattr(b, op)(x, y)),
        **dict.fromkeys(ir.REDUCTIONS, lambda: b.reduce(op, x, 1)),
    }
    graph = ir.Graph({"z": made.get(op, lambda: b.unary(op, x))()})
    text = write(emit(graph, ["x", "y"], ["z"], load("permissive")).program)
    main = parse(text).main
    if op == "input":
        return {v.name for v in main.inputs} == {"x", "y"}
    return SPELT.get(op, op) in {s.op for s in main.statements}


def constraints(_: Path) -> Iterator[Row]:
    """By their numbers in the tests."""
    broken = {
        int(found[1])
        for name in _functions("simulator/test_constraints.py")
        if (found := re.match(r"test_(\d+)_", name))
    }
    there = "test_constraint" in _functions("figures/test_guards.py")
    guarded = {n for n in CONSTRAINTS if there and n not in test_guards.ELSEWHERE}
    guarded |= {n for n, (file, t) in test_guards.ELSEWHERE.items() if t in _functions(file)}
    for what, found, orion in (
        ("breaking (or costing)", broken, ""),
        ("guarding", guarded, "checks 1-4"),
    ):
        text = f"{len(found & set(CONSTRAINTS))} of {len(CONSTRAINTS)}"
        reached = found == set(CONSTRAINTS) and len(CONSTRAINTS) == 20
        yield Row(f"constraints with a {what} test", "20 of 20", orion, text, reached)


def _functions(file: str) -> set[str]:
    tree = ast.parse(HERE.joinpath(file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


PARTS: Sequence[Callable[[Path], Iterator[Row]]] = (
    starts,
    products,
    adapters,
    depth,
    operations,
    constraints,
    numbers,
)


def main() -> int:
    print(f"Counts of the simulator, profile {STRICT}, and its virtual clock.\n")
    print("| | goal | Orion | ours |\n|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "own")
        for part in PARTS:
            for row in part(Path(folder)):
                mark = "" if row.reached else " **missed**"
                print(
                    f"| {row.what} | {row.goal} | {row.orion} | {row.ours}{mark} |", flush=True
                )
                missed += not row.reached
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
