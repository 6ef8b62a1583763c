"""`umbel compare MODEL --device D`: node by node, a device against the references.

A plugin of Umbel that brings nothing but this command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.hookspecs import hookimpl

if TYPE_CHECKING:
    from umbel import Model

    from umbel_kit.alone import Finding
    from umbel_kit.device import Call
    from umbel_kit.recorded import Recorded
    from umbel_kit.traced import Compared, Step, Tracer

UMBEL_API = 1

COLUMNS = ("nmse", "limit", "operation", "node", "device", "step")
WORST = 5  # nodes that are told where all are right
# NMSE where errors pile up: a narrow dtype rounds in every layer, and a device may round
# activations to the weights' float16, or to 8 bits for quantised ones. Over many rows that
# costs up to 1.5e-6 and 1e-3 (`conformance/test_models.py`), the one row of a decode step more.
CHAINED = {"f32": 1e-6, "f16": 1e-3, "bf16": 5e-2}
HALVES, QUANTISED = 2e-5, 1e-2
GROWTH = 4.0  # an error that is so much larger than all before it is told

HELP = """Compares every node of a prefill and of a decode step on the device with its
reference, each on the reference's inputs, and names the first that differs.

Exit codes: 0 all nodes are right, 1 one differs, 2 bad input."""


@hookimpl
def commands(cli: Any) -> None:
    from umbel.cli import common

    summary = HELP.partition(",")[0].replace("\n", " ")
    command = cli.add_parser("compare", help=summary, description=HELP, allow_abbrev=False)
    add = command.add_argument
    add("model", nargs="?", metavar="MODEL", help=common.MODEL)
    add("-p", type=int, default=32, metavar="N", help="random tokens to read (32)")
    add("--seed", type=int, default=0, metavar="S", help="which ones (0)")
    add("--device", default="auto", metavar="D[,D]", help="the best first (auto)")
    add("--threads", "-t", type=int, default=0, metavar="N", help="0: its own choice (0)")
    text = "of every node, in the place of those of the operations"
    add("--limit", type=float, metavar="NMSE", help=text)
    text = "feed each node what the device made of the ones before it, to see where errors grow"
    add("--chained", action="store_true", help=text)
    text = "keep the node that differs"
    add("--save", type=common.replaceable(b"PK"), metavar="CASE.npz", help=text)
    add("--replay", type=Path, metavar="CASE.npz", help="run a node that was kept, no MODEL")
    add("--debug", action="store_true", help="show where errors come from")
    common.add_load(command, bench=True)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from umbel.errors import OptionError

    if args.replay and (args.model or args.save or args.chained):
        msg = "a case is run by itself"
        raise OptionError(msg, where="--replay", expected="no MODEL, --save or --chained")
    if args.save and args.chained:
        msg = "errors that pile up are not those of one node: there is no case to be kept"
        raise OptionError(msg, where="--save", do="leave out --chained")
    if args.p < 1 or args.seed < 0 or not (args.limit is None or args.limit >= 0):
        msg = "a number is out of range"
        expected = "-p from 1 on, --seed and --limit from 0 on"
        raise OptionError(msg, where="-p, --seed, --limit", expected=expected)
    return _replay(args) if args.replay else _compare(args)


def _compare(args: argparse.Namespace) -> int:
    import numpy as np
    from umbel.cli import common

    from umbel_kit import traced

    with common.load(args, ctx=args.p + 1) as model:
        runner, definition = model.runner, model.runner.definition
        n = args.p + (not runner.encodes)
        runner.check_room(n)
        rng = np.random.default_rng(args.seed)
        steps = traced.steps(runner, rng.integers(0, definition.hparams.n_vocab, n).tolist())
        runner.close()  # its memory is for the nodes, one at a time
        limit = args.limit
        if args.chained and limit is None:
            limit = _limit_of_chains(model)
        tracer = traced.Tracer(model.file, definition.ops, chained=args.chained, limit=limit)
        return _show(tracer, steps, args)


def _limit_of_chains(model: Model) -> float:
    """The largest error that a model's values may have."""
    from umbel.gguf.types import F16

    dtypes = {t.dtype for t in model.file.tensors.values()}
    rounded = HALVES if F16 in dtypes else 0.0
    if any(dtype.quantised for dtype in dtypes):
        rounded = QUANTISED
    return max(CHAINED[model.runner.targets[0].info.compute_dtype], rounded)


def _show(tracer: Tracer, steps: Sequence[Step], args: argparse.Namespace) -> int:
    """Goes through the steps; the exit code."""
    from umbel.cli import common

    seen: list[Compared] = []
    first = None
    for compared, case, call in _nodes(tracer, steps):
        seen.append(compared)
        if compared.finding.fault and first is None:
            first = compared, case, call
            if not args.chained:
                break
    if args.chained:
        print("where errors grow:")
        common.show_table([COLUMNS, *map(_row, _growth(seen))])
    if first is not None:
        compared, case, call = first
        print(f"the first node that differs is node {compared.index} of {compared.step}:")
        _show_node(case, call, compared.device, compared.finding, case.story["reason"])
        _keep(case, args)
        return 1
    size = f"{len(seen)} nodes ({', '.join(step.title for step in steps)})"
    print(f"all of {size} are within their bounds" + "; the worst:" * (not args.chained))
    if not args.chained:
        worst = sorted(seen, key=lambda c: (c.finding.share, c.finding.nmse))[-WORST:]
        common.show_table([COLUMNS, *map(_row, reversed(worst))])
    if args.save:
        common.say(f"umbel: note: {args.save} is not written, as nothing differs")
    return 0


def _nodes(tracer: Tracer, steps: Iterable[Step]) -> Iterator[tuple[Compared, Recorded, Call]]:
    from umbel.cli import common

    for step in steps:
        common.say_progress(f"{step.title}: {len(step.placement.nodes)} nodes")
        yield from tracer.compare(step)


def _row(compared: Compared) -> tuple[object, ...]:
    finding = compared.finding
    figures = f"{finding.nmse:.2e}", f"{finding.limit:g}"
    return (*figures, compared.op, compared.name, compared.device, compared.step)


def _growth(seen: Iterable[Compared]) -> list[Compared]:
    """The nodes whose error is several times larger than all before."""
    most = 0.0
    found: list[Compared] = []
    for compared in seen:
        if compared.finding.nmse > GROWTH * most:
            most = compared.finding.nmse
            found.append(compared)
    return found


def _show_node(case: Recorded, call: Call, device: str, finding: Finding, *facts: str) -> None:
    """A node and what is said of it, a line for each fact."""
    from umbel.cli import common
    from umbel.graph import Role

    node = call.node
    print(f"  {case.name} ({case.op}) on {device}")
    for fact in facts:
        print(f"  {fact}")
    rows: list[Sequence[object]] = [("  result", "", list(node.shape), node.dtype, "")]
    for (i, _), t in zip(case.inputs, node.inputs, strict=True):
        leaf = case.leaves[i]
        notes = [leaf.role.value]
        if leaf.role is Role.WEIGHT and leaf.dtype is not t.dtype:
            notes.append(f"{leaf.dtype} in the file")
        if not t.is_contiguous:
            notes.append(f"strides {list(t.strides)}")
        rows.append(("  input", leaf.name, list(t.shape), t.dtype, ", ".join(notes)))
    rows += [("  attribute", name, repr(value), "", "") for name, value in case.how.items()]
    common.show_table(rows)
    print(f"  NMSE {finding.nmse:.3g}, limit {finding.limit:g}")
    if finding.fault and not finding.fault.startswith("NMSE"):
        print(f"  {finding.fault}")


def _keep(case: Recorded, args: argparse.Namespace) -> None:
    from umbel_kit import recorded

    if args.save:
        recorded.save(args.save, case)
        print(f"its inputs are in {args.save}; --replay runs it again, on any --device")
    elif not args.chained:
        print("--save CASE.npz keeps its inputs, for --replay")


def _replay(args: argparse.Namespace) -> int:
    from umbel import loading, plugins
    from umbel.errors import DeviceError
    from umbel.ops import OPS

    from umbel_kit import alone, recorded

    found = plugins.get()
    ops = {**OPS, **{op.name: op for _, brought in found.ask("ops") for op in brought}}
    case = recorded.load(args.replay, ops)
    options = plugins.parse_options(args.option)
    target, *_ = loading.targets(args.device, options, args.threads, args.strict)
    call = case.ready(target, ops)
    reason = target.hooks.op_supported(target.device, call.node)
    if reason is not None:
        msg = f"{target.name} does not run this node"
        raise DeviceError(msg, where=case.name, got=reason, do="choose another device")
    expected, actual = alone.by_reference(call), alone.run(target, call)
    finding = alone.judge(call, target, expected, actual, args.limit)
    print("the node differs:" if finding.fault else "the node is right:")
    step, device, reason = (case.story.get(k, "?") for k in ("step", "device", "reason"))
    origin = f"it was kept in the step of {step}, on {device} ({reason})"
    _show_node(case, call, target.device.title, finding, origin)
    return 1 if finding.fault else 0
