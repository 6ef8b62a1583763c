"""`umbel bench MODEL`: how fast prompts are read and answers written, like llama-bench.

ppN reads N random tokens in one go; tgN writes N tokens one by one, without a sampler. With
`-b`, as llama-batched-bench has it, B sequences read a prompt each and then write together.
Each test runs once to warm up and then `-r` times, on one device and thread count after the
other.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from umbel.cli import common
from umbel.errors import OptionError

if TYPE_CHECKING:
    from umbel.model import Model

HELP = """Measures tokens per second. Devices and thread counts are measured one after the
other, each in every test."""
HEAD = ("model", "size", "params", "device", "threads", "test", "t/s")
RATES = {"first_token_ms": "first token, ms", "s_pp": "S_PP t/s", "s_tg": "S_TG t/s"}

Row = dict[str, Any]


def add(commands: common.Commands) -> None:
    parser = common.command(commands, "bench", run, HELP)
    add = parser.add_argument
    add("model", metavar="MODEL", help=common.MODEL)
    add("-p", type=common.whole(0), default=512, metavar="N", help="tokens to read (512)")
    add("-n", type=common.whole(0), default=128, metavar="N", help="tokens to write (128)")
    text = "also so many sequences together"
    add("-b", type=common.several(1), default=[], metavar="B[,B]", help=text)
    text = "0: the device chooses (0)"
    add("--threads", "-t", type=common.several(0), default=[0], metavar="T[,T]", help=text)
    add("--device", "-d", default="auto", metavar="D[,D]", help="(auto)")
    add("-r", type=common.whole(1), default=5, metavar="N", help="runs of each test (5)")
    add("--json", action="store_true", help="write JSON")
    common.add_load(parser, bench=True)


def run(args: argparse.Namespace) -> int:
    from umbel import plugins

    if not args.p + args.n:
        msg = "there is nothing to measure"
        raise OptionError(msg, where="-p, -n", expected="tokens to read or to write")
    ctx = max(args.p, args.n, (args.p + args.n) * bool(args.b))
    rows: list[Row] = []
    try:
        for device, threads in itertools.product(args.device.split(","), args.threads):
            plugins.get().close()  # an open device keeps its number of threads
            place = {"device": device, "threads": threads, "ctx": ctx}
            with common.load(args, **place, parallel=max(args.b, default=1)) as model:
                rows.extend(_measure(model, args))
    finally:  # after Ctrl-C, what is there
        if rows and args.json:
            common.show_json(rows)
        elif rows:
            common.show_table([(*HEAD, *RATES.values()), *map(_line, rows)])
    return 0


def _measure(model: Model, args: argparse.Namespace) -> Iterator[Row]:
    from statistics import fmean, stdev  # costs 50 ms, which no help should wait for

    target = model.runner.targets[0]
    nbytes, params = common.sizes(model.file)
    facts = {"model": model.file.path.stem, "size": nbytes, "params": params}
    facts |= {"device": common.device_name(target)}
    facts |= {"threads": target.info.details.get("threads")}
    tests = [(f"pp{args.p}", args.p, 0, 1), (f"tg{args.n}", 0, args.n, 1)]
    tests += [(f"pp{args.p}+tg{args.n} x{b}", args.p, args.n, b) for b in args.b]
    for name, p, n, b in tests:
        if not p + n:
            continue
        with common.waiting(f"{name} on {target.name}"):
            runs = [_run(model, p, n, b) for _ in range(args.r + 1)][1:]
        rates = [b * (p + n) / (pp + tg) for pp, tg, _ in runs]
        row = {**facts, "test": name, "sequences": b, "runs": len(runs)}
        row |= {"tps": fmean(rates), "stddev": stdev(rates) if len(rates) > 1 else 0.0}
        if p and n:
            row["s_pp"] = fmean(b * p / pp for pp, *_ in runs)
            row["s_tg"] = fmean(b * n / tg for _, tg, _ in runs)
        elif p:
            row["first_token_ms"] = 1000 * fmean(first for *_, first in runs)
        yield row


def _run(model: Model, p: int, n: int, b: int) -> tuple[float, float, float]:
    """Seconds for reading, for writing, and until the first token was known."""
    import numpy as np

    from umbel.state import Sequence

    runner = model.runner
    n_vocab = runner.definition.hparams.n_vocab
    tokens = np.random.default_rng(0).integers(0, n_vocab, max(p, n)).tolist()
    sequences = [Sequence() for _ in range(b)]
    groups = [sequences[i : i + runner.widest] for i in range(0, b, runner.widest)]

    def work() -> tuple[float, float, float]:
        begin = time.perf_counter()
        for sequence in sequences if p else ():
            runner.forward(sequence, tokens[:p]).argmax()
        read = time.perf_counter()
        for token in tokens[:n]:
            for group in groups:
                runner.decode(group, [token] * len(group))
        written = time.perf_counter()
        for sequence in sequences:
            runner.cache.close(sequence)
        return read - begin, written - read, read - asked

    asked = time.perf_counter()
    return model.engine.call(work)


def _line(row: Row) -> tuple[object, ...]:
    size, params = common.mib(row["size"]), f"{row['params'] / 1e6:.2f} M"
    speed = f"{row['tps']:.2f} ± {row['stddev']:.2f}"
    rates = (f"{row[key]:.2f}" if key in row else "" for key in RATES)
    return row["model"], size, params, row["device"], row["threads"], row["test"], speed, *rates
