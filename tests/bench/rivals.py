"""Umbel beside llama.cpp: same files, same threads, in turns, on a machine that is watched.

    python rivals.py --models FOLDER [--llama-cpp PYTHON] [--device auto|none] [--row NAME ...]
                     [--threads 1 2] [--samples 9] [--quick] [--list] [--write PAGE]

FOLDER is the place for the files of `synthetic.py`, which are made where they are missing.
Each engine runs in a process of its own (`workers.py`); llama.cpp in several, one for each way
in which it may keep its weights, and each with flash attention and without. For every work the
best of these, by two runs of each, is the rival. Then both are sampled in turns, with probes of
the machine before and after every sample; `figures.py` says which of them count. A process that
dies is told below the table, never left out.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import figures
import synthetic
from figures import Placements, Summary
from machine import Limits, Machine, describe
from measure import OURS, THEIRS, Bench, Measured
from rows import FIRST, MEMORY, NAMES, PYTHON, ROWS, Facts, Row

HEADS = (
    *("work", "threads", "placement", "llama.cpp", "Umbel", "ratio", "at least"),
    *("of the limit: llama.cpp", "Umbel", "samples", "dropped", "llama.cpp's setting"),
)
MARKS = re.compile(r"(<!-- rivals -->\n).*?(\n<!-- end of rivals -->)", re.DOTALL)


@attrs.frozen(kw_only=True)
class Page:
    """What a run has seen, as Markdown."""

    bench: Bench
    limits: dict[int, Limits]
    measured: list[Measured] = attrs.field(factory=list)
    told: list[str] = attrs.field(factory=list)  # what is in no table

    def lines(self, one: Measured) -> Iterator[list[str]]:
        """A line for each placement that a work was seen in."""
        places, foreign = Placements.find(self.bench.machine.seen), self.bench.foreign
        found, dropped = figures.summarise(one.samples, places, OURS, THEIRS, foreign)
        why = figures.reasons(dropped)
        for summary in found:
            yield self._line(one, summary, why)
        if not found:
            begin = [one.name, str(one.threads), *["-"] * 4, one.work.goal or "-"]
            yield [*begin, *["-"] * 3, why, one.setting]

    def _line(self, one: Measured, summary: Summary, dropped: str) -> list[str]:
        limit = self._limit(one, summary)
        tokens, need = one.work.tokens, one.work.need(one.facts)
        told, shares = dict[str, str](), dict[str, str]()
        for engine, seconds in summary.seconds.items():
            rate = tokens / seconds
            told[engine] = figures.number(rate, " t/s") if tokens else f"{seconds:.2f} s"
            shares[engine] = figures.share(rate * need, limit)
        return [
            *(one.name, str(one.threads), summary.placement.name),
            *(told.get(engine, "-") for engine in (THEIRS, OURS)),
            figures.number(summary.ratio, "x"),
            one.work.goal or "-",
            *(shares.get(engine, "-") for engine in (THEIRS, OURS)),
            f"{summary.kept.get(THEIRS, 0)} + {summary.kept.get(OURS, 0)}",
            *(dropped, one.setting),
        ]

    def _limit(self, one: Measured, summary: Summary) -> float:
        limits = self.limits[one.threads]
        if one.work.call == "prefill":
            return limits.floats if one.facts.floats else limits.bytes
        if one.work.call != "decode":
            return 0.0
        probed = one.threads == self.bench.machine.threads
        return summary.placement.middle.bandwidth if probed else limits.bandwidth

    def __str__(self) -> str:
        machine = self.bench.machine
        today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        versions = [f"{engine} {version}" for engine, version in self.bench.versions.items()]
        versions.append(f"Python {platform.python_version()}")
        command = shlex.join(["nox", "-s", "bench-peers", "--", *without_paths(sys.argv[1:])])
        parts = [f"{today}; {', '.join(versions)}; {describe()}.", f"`{command}`"]
        if lines := [line for one in self.measured for line in self.lines(one)]:
            parts.append(figures.table(HEADS, lines))
        parts += self.told
        parts += (
            f"Placement {where.name}, {where.probes} of {len(machine.seen)} probes: "
            f"{where.middle.latency:.0f} ns from core to core, "
            f"{where.middle.bandwidth:.1f} GB/s read (threads: {machine.threads})."
            for where in Placements.find(machine.seen).known.values()
        )
        parts += (
            f"Limits with threads: {threads}: {most.bytes:.0f} GOPS in products of bytes, "
            f"{most.floats:.0f} GFLOPS in float32, {most.bandwidth:.1f} GB/s read."
            for threads, most in self.limits.items()
        )
        parts += (f"{how} ({n} times)." for how, n in self.bench.died.items())
        return "\n\n".join(parts)


def others(bench: Bench, names: Sequence[str], threads: list[int], folder: Path) -> list[str]:
    """What is no speed, in words."""
    told = []
    for n in threads if PYTHON.name in names else ():
        share = bench.python_share(PYTHON, facts_of(PYTHON, folder), n)
        if share is not None:
            told.append(
                f"Of a step of decoding ({PYTHON.model}, threads: {n}), {100 * share:.1f} % of "
                "Umbel's time is spent outside of its backend's `graph_compute` and `sync`: in "
                "the core's Python and the choice of a token (goal: under 3 %)."
            )
    if MEMORY.name in names:
        facts = facts_of(MEMORY, folder)
        peaks = bench.memory(MEMORY, facts, max(threads))
        parts = [f"{e} {p / 2**20:.0f} MiB ({p / facts.size:.2f}x)" for e, p in peaks.items()]
        told.append(
            f"Peak resident memory ({MEMORY.model}, without KV cache and interpreter; times "
            f"the size of the file): {', '.join(parts)} (goal: 1.15x)."
        )
    return told


def facts_of(row: Row, folder: Path) -> Facts:
    return Facts.of(synthetic.make(row.model, folder))


def run(args: argparse.Namespace, machine: Machine) -> Page:
    bench = Bench(
        machine=machine,
        device=args.device,
        llama_cpp=args.llama_cpp,
        samples=3 if args.quick else args.samples,
        foreign=args.foreign,
        patience=args.patience,
    )
    page = Page(bench=bench, limits={n: machine.limits(n) for n in args.threads})

    def add(one: Measured) -> None:
        page.measured.append(one)
        for line in page.lines(one):
            print(" | ".join(line), file=sys.stderr, flush=True)

    for row in (r for r in ROWS if r.name in args.row):
        for threads in args.threads:
            for one in bench.measure(row, facts_of(row, args.models), threads):
                add(one)
    for threads in args.threads if FIRST.name in args.row else ():
        add(bench.commands(FIRST, facts_of(FIRST, args.models), threads))
    page.told.extend(others(bench, args.row, args.threads, args.models))
    for threads, most in page.limits.items():  # the better of two looks, an hour apart
        page.limits[threads] = most.better(machine.limits(threads))
    return page


def renew(path: Path, told: str) -> None:
    """Puts the figures between the marks of a page; all else stays."""
    text = path.read_text("utf-8")
    path.write_text(MARKS.sub(lambda m: f"{m[1]}\n{told}\n{m[2]}", text), "utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Umbel beside llama.cpp.")
    add = parser.add_argument
    add("--models", type=Path, metavar="FOLDER", help="where model files are made and kept")
    add("--llama-cpp", metavar="PYTHON", help="that has llama_cpp; without it, Umbel alone")
    add("--device", default="auto", help="Umbel's; none: llama.cpp alone (auto)")
    add("--row", nargs="+", default=NAMES, choices=NAMES, metavar="NAME", help="(all)")
    usable = len(os.sched_getaffinity(0))
    add("--threads", type=int, nargs="+", default=sorted({1, usable}), metavar="N")
    add("--samples", type=int, default=9, help="of each work and engine (9)")
    text = f"share of the processors that others may take during a sample ({figures.FOREIGN})"
    add("--foreign", type=float, default=figures.FOREIGN, help=text)
    text = "seconds to wait for others before a sample (30)"
    add("--patience", type=float, default=30, help=text)
    add("--quick", action="store_true", help="three samples")
    add("--list", action="store_true", help="the names of the rows")
    add("--write", type=Path, metavar="PAGE", help="renew the figures in this page")
    args = parser.parse_args()
    if not args.list and args.models is None:
        parser.error("--models is missing: a folder for the model files")
    if min([args.samples, *args.threads]) < 1:
        parser.error("--samples and --threads are 1 or more")
    page = args.write
    if page and not (page.is_file() and MARKS.search(page.read_text("utf-8"))):
        parser.error(f"{page} is no page with the mark <!-- rivals -->")
    return args


def without_paths(given: Sequence[str]) -> list[str]:
    """Arguments, but for those that name places on this machine."""
    words = iter(word for one in given for word in one.split("=", 1))
    places = ("--models", "--llama-cpp", "--write")
    return [word for word in words if not (word in places and next(words))]


def main() -> None:
    args = parse()
    if args.list:
        print("\n".join(NAMES))
        return
    with Machine(max(args.threads)) as machine:
        told = str(run(args, machine))
    print(told)
    if args.write:
        renew(args.write, told)


if __name__ == "__main__":
    main()
