"""`umbel plan MODEL`: what runs where, and why not elsewhere.

Two plans are shown: that of writing (one token) and that of reading a prompt. With `--nodes`
every node is listed: index, device, operation, name, shape, dtype and reason.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import TYPE_CHECKING

from umbel.cli import common

if TYPE_CHECKING:
    from umbel.graph import Tensor
    from umbel.model import Model
    from umbel.models import StepShape
    from umbel.plan import Plan

USUAL = "runs there"  # the reason that needs no telling


def add(commands: common.Commands) -> None:
    parser = common.command(commands, run, "plan")
    parser.add_argument("model", metavar="MODEL", help=common.MODEL)
    parser.add_argument("--nodes", action="store_true", help="list every node")
    common.add_load(parser)


def run(args: argparse.Namespace) -> int:
    """Shows which device computes what, why others refused, and the memory it takes."""
    with common.load(args) as model:
        for shape in _shapes(model):
            plan = model.runner.plan(shape)
            n, splits = len(plan.placement.nodes), len(plan.splits)
            print(f"{shape.tokens} of {shape.kv_length} tokens: {n} nodes in {splits} splits")
            _show(plan, args.nodes)
        _show_memory(model)
    return 0


def _shapes(model: Model) -> list[StepShape]:
    """The steps whose plans are shown."""
    from umbel.models import StepShape

    runner = model.runner
    longest = runner.longest_piece
    if runner.definition.architecture.pooled:
        return [runner.encoder_shape(longest)]
    return [runner.padded(StepShape(n, 1, model.ctx, 1)) for n in (1, longest)]


def _show(plan: Plan, every: bool) -> None:
    placed = [
        (common.device_name(p.target.device), _operation(p.node), p)
        for p in plan.placement.nodes
    ]
    work = Counter((device, operation) for device, operation, _ in placed)
    common.show_table((f"  {device}", n, name) for (device, name), n in work.items())
    # The same node of every layer has the same reason.
    told = [(d, re.sub(r"\d+", "N", p.origin), p.reason) for d, _, p in placed]
    why = Counter(row for row in told if row[-1] != USUAL)
    common.show_table((f"  {d}", f"{n} {origin}", r) for (d, origin, r), n in why.items())
    if every:
        common.show_table(
            (f"  {i}", operation, p.node.label, p.node.shape, p.node.dtype, device, p.reason)
            for i, (device, operation, p) in enumerate(placed)
        )


def _operation(node: Tensor) -> str:
    return node.op.name if node.op else node.label


def _show_memory(model: Model) -> None:
    runner, homes = model.runner, model.runner.states.homes
    rows: list[tuple[str, ...]] = [("device", "weights", "state", "compute")]
    for target in runner.targets:
        states = (t for name, t in runner.states.tensors.items() if homes[name] is target)
        weights, compute = runner.weights.nbytes(target), runner.arenas.nbytes(target)
        sizes = map(common.mib, (weights, sum(t.nbytes for t in states), compute))
        rows.append((common.device_name(target.device), *sizes))
    common.show_table(rows)
