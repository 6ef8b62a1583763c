"""`umbel bench MODEL`: how fast prompts are read and answers written, like llama-bench.

ppN reads N random tokens in one go; tgN writes N tokens one by one, without a sampler. With
`-b`, as llama-batched-bench has it, B sequences read a prompt each and then write together.
Each test runs once to warm up and then `-r` times, on one device and thread count after the
other.

With `--draft` two texts are continued greedily, without drafts and with them by turns: one that
repeats itself, the best case of a lookup, and one that does not.

`--submit-report` also writes all that was seen into a file for those who made the backend.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import umbel
from umbel.cli import common
from umbel.errors import DeviceError, OptionError, PluginError

if TYPE_CHECKING:
    from umbel.tools.report import Observed

COLUMNS = ("device", "threads", "test", "tps", "stddev", "first_token_ms", "s_pp", "s_tg")
DRAFT = ("accepted", "drafted", "ratio")  # columns more with --draft
REPORT = b"# Umbel report"  # how a file begins that may be replaced by another

PROGRAM = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height

def volume(width, height, depth):
    if depth < 0:
        raise ValueError("a side is negative")
    return area(width, height) * depth

"""
TEXTS = {
    "copy": PROGRAM * 2 + PROGRAM[:24],
    "story": "Once upon a time there was a little boat that wanted to see the ocean.",
}


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=common.MODEL)
    add("-p", type=int, default=512, metavar="N", help="tokens to read (512)")
    add("-n", type=int, default=128, metavar="N", help="tokens to write (128)")
    add("-b", type=common.numbers, default=[], metavar="B[,B]", help="sequences together")
    text = "0: the device chooses (0)"
    add("--threads", "-t", type=common.numbers, default=[0], metavar="T[,T]", help=text)
    add("--device", default="auto", metavar="D[,D]", help="(auto)")
    add("-r", type=int, default=5, metavar="N", help="runs of each test (5)")
    add("--json", action="store_true", help="write JSON")
    text = "with --draft: continued in the place of the two texts that are built in"
    add("--text", type=common.text_file, metavar="FILE", help=text)
    text = "write a report to attach to an issue: speeds, versions, answers beside the host's"
    add("--submit-report", type=common.replaceable(REPORT), metavar="FILE", help=text)
    common.add_draft(parser)
    common.add_load(parser, bench=True)


def run(args: argparse.Namespace) -> None:
    """Measures tokens per second.

    Devices and thread counts are measured one after the other, each in every test.
    """
    from umbel import plugins
    from umbel.tools import report

    if min(args.p, args.n) < 0 or args.p + args.n == 0 or min([args.r, *args.b]) < 1:
        msg = "there is nothing to measure"
        raise OptionError(msg, where="-p, -n, -b, -r", expected="numbers above 0")
    ctx = args.p + args.n if args.b else max(args.p, args.n)
    if (out := args.submit_report) is not None:
        ctx = max(ctx, report.TOKENS)
        if not out.absolute().parent.is_dir():
            msg = "there is no such folder to write to"
            raise OptionError(msg, where=out, do="make it first")
    if args.text is not None and args.draft is None:
        msg = "there are no drafts to measure with the text"
        raise OptionError(msg, where="--text", do="add --draft")
    texts = TEXTS if args.text is None else {"text": args.text}
    # How long the texts are is known when the model is there: then it gets the usual context.
    room = {"ctx": None if args.draft else ctx, "parallel": max(args.b, default=1)}
    rows: list[dict[str, Any]] = []
    seen: list[report.Observed] = []
    for device, threads in itertools.product(args.device.split(","), args.threads):
        plugins.get().close()  # an open device keeps its number of threads
        try:
            with (
                report.notes() as notes,
                common.load(args, device=device, threads=threads, **room) as model,
            ):
                model.open()  # refuses an encoder
                mine = [*_measure(model, args)]
                for name, text in texts.items() if args.draft and args.n else ():
                    mine.extend(_measure_draft(model, args, name, text))
                rows.extend(mine)
                if out is not None:
                    seen.append(report.observe(model, mine, notes))
        except (DeviceError, PluginError) as error:  # then a report is worth most
            if out is not None:
                _submit(args, room, seen, {"device": device, "error": str(error)})
            raise
    if out is not None:
        _submit(args, room, seen)
    if args.json:
        common.show_json(rows)
    else:
        columns = COLUMNS + (DRAFT if args.draft else ())
        common.show_table([columns, *([row.get(key, "") for key in columns] for row in rows)])


def _submit(
    args: argparse.Namespace,
    room: dict[str, Any],
    seen: Sequence[Observed],
    failure: dict[str, str] | None = None,
) -> None:
    """Writes the report, for which the host gets the model once more."""
    from umbel import plugins
    from umbel.tools import report

    plugins.get().close()
    host = {"device": "host", "threads": 0, "draft": None, **room}
    report.write(args.submit_report, lambda: common.load(args, **host), seen, failure)
    common.say(f"umbel: {args.submit_report} is written: look through it before you send it")


def _measure(model: umbel.Model, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each test."""
    from statistics import fmean, stdev  # costs 50 ms, which no help should wait for

    facts, target = _facts(model, args), model.runner.targets[0]
    tests = [(f"pp{args.p}", args.p, 0, 1), (f"tg{args.n}", 0, args.n, 1)]
    tests += [(f"pp{args.p}+tg{args.n} x{b}", args.p, args.n, b) for b in args.b]
    for name, p, n, b in tests:
        if not p + n:
            continue
        common.say_progress(f"{name} on {target.name}")
        runs = [_run(model, p, n, b) for _ in range(args.r + 1)][1:]
        rates = [b * (p + n) / (read + written) for read, written in runs]
        row = {**facts, "test": name, "sequences": b, "tps": fmean(rates)}
        row["stddev"] = stdev(rates) if len(rates) > 1 else 0.0
        if p and n:
            row["s_pp"] = fmean(b * p / read for read, _ in runs)
            row["s_tg"] = fmean(b * n / written for _, written in runs)
        elif p:
            row["first_token_ms"] = 1000 * fmean(read for read, _ in runs)
        yield row


def _facts(model: umbel.Model, args: argparse.Namespace) -> dict[str, Any]:
    target = model.runner.targets[0]
    threads = target.info.details.get("threads")
    return {"device": target.device.title, "threads": threads, "runs": args.r}


def _measure_draft(
    model: umbel.Model, args: argparse.Namespace, name: str, text: str
) -> Iterator[dict[str, Any]]:
    """A row without drafts and one with them, which says how many were accepted."""
    from statistics import fmean, median, stdev

    common.say_progress(f"{name} with drafts on {model.devices[0]}")
    ids = model.tokenizer.encode(text, eos=False)
    n = min(args.n, model.ctx - len(ids) - 1)  # after the first one, which costs the prompt
    model.runner.check_room(len(ids) + max(n, 1) + 1, where=f"the text {name!r}")
    plain, drafts = [], []
    for _ in range(args.r + 1):
        plain.append(_continue(model, ids, n, draft_max=0))
        drafts.append(_continue(model, ids, n))
    ratios = [d[0] / p[0] for p, d in zip(plain[1:], drafts[1:], strict=True)]
    for end, runs in (("", plain), (" drafts", drafts)):
        rates = [rate for rate, _, _ in runs[1:]]
        row = {**_facts(model, args), "test": f"tg{n} {name}{end}", "sequences": 1}
        row |= {"tps": fmean(rates), "stddev": stdev(rates) if len(rates) > 1 else 0.0}
        if end:
            _, accepted, drafted = runs[-1]
            row |= {"accepted": accepted, "drafted": drafted, "ratio": median(ratios)}
        yield row


def _continue(
    model: umbel.Model, ids: list[int], n: int, **more: int
) -> tuple[float, int, int]:
    """Tokens per second after the first one, and how many of those drafted were accepted."""
    onwards = dict.fromkeys(model.tokenizer.vocab.ends, float("-inf"))
    given: dict[str, Any] = {"max_tokens": n + 1, "temperature": 0, "logit_bias": onwards}
    answer = model.generate(ids, **given | more)
    answer.read()
    rate = (len(answer.tokens) - 1) / max(answer.decode_seconds, 1e-9)
    return rate, answer.accepted, answer.drafted


def _run(model: umbel.Model, p: int, n: int, b: int) -> tuple[float, float]:
    """Seconds until the first tokens were known, and for writing the others."""
    import numpy as np

    from umbel.state import Sequence

    runner = model.runner
    n_vocab = runner.definition.hparams.n_vocab
    tokens = np.random.default_rng(0).integers(0, n_vocab, max(p, n)).tolist()
    sequences = [Sequence() for _ in range(b)]
    groups = [sequences[i : i + runner.widest] for i in range(0, b, runner.widest)]

    def work() -> tuple[float, float]:
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
        return read - begin, written - read

    return model.engine.call(work)
