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
    from umbel import Model
    from umbel.plan import Plan

USUAL = "runs there"  # the reason that needs no telling


def add(parser: common.Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=common.MODEL)
    parser.add_argument("--nodes", action="store_true", help="list every node")
    common.add_load(parser)


def run(args: argparse.Namespace) -> None:
    """Shows which device computes what, why others refused, and the memory it takes."""
    with common.load(args) as model:
        for shape in model.runner.usual:
            plan = model.runner.plan(shape)
            n, splits = len(plan.placement.nodes), common.counted(len(plan.steps), "split")
            print(f"{shape.tokens} of {shape.kv_length} tokens: {n} nodes in {splits}")
            _show(plan, args.nodes)
        _show_memory(model)


def _show(plan: Plan, every: bool) -> None:
    placed = [
        (p.target.device.title, p.node.op.name, p) for p in plan.placement.nodes if p.node.op
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


def _show_memory(model: Model) -> None:
    runner = model.runner
    kinds = (runner.weights, runner.states, runner.arenas)
    rows = [["device", "weights", "state", "compute"]]
    for target in runner.every:
        rows.append([target.device.title, *(common.mib(k.nbytes(target)) for k in kinds)])
    common.show_table(rows)
