"""`umbel numa report MODEL` and `umbel numa tune MODEL`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from umbel.errors import OptionError

if TYPE_CHECKING:
    import umbel
    from umbel.cli.common import Parser

    from umbel_numa.report import Report
    from umbel_numa.tune import Trial

Table = list[tuple[object, ...]]

HELP = "The native CPU engine on this machine: where its time goes, and its best threads."
_REPORT = """Tells where the weights lie, what each node reads, and where the time goes.

It needs no NUMA machine: one node is one line. With --json all of it goes into a file, which a
machine's owner can send."""
_TUNE = """Tries numbers of threads with a model, and remembers the best for this machine.

They are used from then on for models of about its size with the same options (-O), where none
are given. On several nodes the use of each expert of a mixture is counted as well, and
remembered for this model."""


def add(cli: Any) -> None:
    """The sub-commands."""
    parser = cli.add_parser("numa", help=HELP.rstrip("."), description=HELP, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    report = _command(commands, "report", _REPORT, run_report)
    _add_model(report, "MODEL")
    from umbel.cli import common

    text = "sequences together (1)"
    report.add_argument("-b", type=common.numbers, default=[1], metavar="B[,B]", help=text)
    text = "time barriers with other numbers of threads too"
    report.add_argument("--sweep", action="store_true", help=text)
    _sizes(report, pp=128, tg=32)
    text = "keep all of it as JSON"
    report.add_argument("--json", type=common.replaceable(b"{"), metavar="FILE", help=text)
    _load(report)
    tune = _command(commands, "tune", _TUNE, run_tune)
    _add_model(tune, "MODEL", nargs="?")
    _sizes(tune, pp=256, tg=24)
    text = "drop what is known of this machine, and of experts"
    tune.add_argument("--forget", action="store_true", help=text)
    _load(tune)


def _command(
    commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> Parser:
    summary = text.partition("\n")[0].rstrip(".")
    made: Parser = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
    made.add_argument("--debug", action="store_true", help="show where errors come from")
    made.set_defaults(run=run)
    return made


def _add_model(parser: Parser, name: str, **more: Any) -> None:
    from umbel.cli import common

    parser.add_argument("model", metavar=name, help=common.MODEL, **more)


def _sizes(parser: Parser, pp: int, tg: int) -> None:
    parser.add_argument("-p", type=int, default=pp, metavar="N", help=f"tokens to read ({pp})")
    parser.add_argument("-n", type=int, default=tg, metavar="N", help=f"tokens to write ({tg})")


def _load(parser: Parser) -> None:
    from umbel.cli import common

    text = "0: one for each physical core (0)"
    parser.add_argument("--threads", "-t", type=int, default=0, metavar="N", help=text)
    common.add_load(parser, bench=True)


def _open(args: argparse.Namespace, batches: list[int]) -> umbel.Model:
    from umbel.cli import common

    if min(args.p, args.n, *batches) < 1:
        msg = "there is nothing to measure"
        raise OptionError(msg, where="-p, -n or -b", expected="numbers above 0")
    room = {"ctx": args.p + args.n, "parallel": max(batches)}
    model = common.load(args, device="numa", **room)
    model.open()  # refuses an encoder
    return model


def run_report(args: argparse.Namespace) -> int:
    from umbel.cli import common

    from umbel_numa.report import examine

    if args.n < 2:  # the first token comes with the prompt
        msg = "there is no step of decoding to measure"
        raise OptionError(msg, where="-n", expected="2 or more", got=args.n)
    if args.json and not args.json.parent.is_dir():
        msg = "there is no such folder to write to"
        raise OptionError(msg, where=args.json.parent)
    with _open(args, args.b) as model:
        found = examine(model, args.p, args.n, args.b, sweep=args.sweep)
    for table in _tables(found):
        common.show_table(table)
        print()
    print(*_lines(found), sep="\n")
    if args.json:
        args.json.write_text(json.dumps(found.as_dict(), indent=1) + "\n", "utf-8")
    return 0


def _tables(found: Report) -> Iterator[Table]:
    nodes: Table = [
        ("node", "threads", "prefill", "resident MB", "read MB/token", "GB/s", "local")
    ]
    yield nodes + [
        (
            "all" if n.node < 0 else n.node,
            n.threads,
            n.threads_prefill,
            "unknown" if n.resident is None else f"{n.resident / 1e6:.1f}",
            f"{n.read / 1e6:.1f}",
            f"{n.gb_s:.1f}",
            "unknown" if n.local is None else f"{n.local:.1%}",
        )
        for n in found.nodes
    ]
    speeds: Table = [("PP", "TG", "B", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "S t/s")]
    yield speeds + [
        (
            *(s.pp, s.tg, s.b, f"{s.read:.3f}", f"{s.s_pp:.2f}"),
            *(f"{s.written:.3f}", f"{s.s_tg:.2f}", f"{s.s:.2f}"),
        )
        for s in found.speeds
    ]
    barriers: Table = [("threads that meet", "ns", "ns with a flat barrier")]
    yield barriers + [
        (b.threads, f"{b.two_level:.0f}", f"{b.flat:.0f}") for b in found.barriers
    ]


def _lines(found: Report) -> Iterator[str]:
    t, engine = found.times, found.engine
    shares = f"products {t.products:.1%}, attention {t.attention:.1%}, other {t.other:.1%}"
    yield f"time of a decode step: barriers {t.barriers:.1%}, {shares}"
    where = "pinned" if engine["pinned"] else "not pinned"
    yield f"kernels {engine['kernels']}, mode {engine['mode']}, threads {where}"
    if found.misplaced:
        yield f"on another node than the one that reads them: {found.misplaced / 1e6:.1f} MB"
    if found.experts:
        e = found.experts
        parts = f"rows {e.rows:.1%}, whole {e.whole:.1%}, by use {e.by_use:.1%}"
        yield f"the busiest node's part of experts: {parts}: numa.experts={e.better} is better"


def run_tune(args: argparse.Namespace) -> int:
    from umbel import plugins
    from umbel.cli import common

    import umbel_numa
    from umbel_numa import tuned, use
    from umbel_numa.topology import read
    from umbel_numa.tune import tune

    if args.forget:
        some = [tuned.forget(read()), use.forget()]
        print("forgotten" if any(some) else "there was nothing to forget")
        return 0
    given = plugins.parse_options(args.option).get("numa", {})
    options = plugins.get().option_values("numa", given)
    if args.threads or options["threads"] or options["threads_prefill"]:
        msg = "the numbers of threads are what is looked for"
        where = "--threads, -O numa.threads, -O numa.threads_prefill"
        raise OptionError(msg, where=where, do="leave them out")
    tuned.check_writable()

    def told(trial: Trial) -> None:
        common.say_progress(f"{trial.threads}: {trial.s_pp:.1f}, {trial.s_tg:.1f} t/s")

    with _open(args, [1]) as model:
        engine = umbel_numa.opened()
        found = tune(model, engine, args.p, args.n, told)
        rows = [(t.threads, f"{t.s_pp:.1f}", f"{t.s_tg:.1f}") for t in found.trials]
        common.show_table([("threads", f"pp{args.p} t/s", f"tg{args.n} t/s"), *rows])
        s = "" if found.decode == 1 else "s"
        print(f"\nbest: {found.decode} thread{s}, {found.prefill} for prompts")
        known = tuned.Records.of(read(), tuned.way(options))
        known.remember(engine.met.nbytes, (found.decode, found.prefill))
        print(f"remembered in {tuned.path()}")
        if len(engine.placement.numbers) > 1:
            use.remember(engine, use.counted(model, engine, args.p))
    return 0
