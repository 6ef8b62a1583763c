"""`umbel ane ...`: programs, what is compiled, adapters, Core ML, and a report."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from umbel.errors import OptionError

HELP = "The Neural Engine: programs, what is compiled, adapters, a report."
_EXPLAIN = """Tells which programs a model will have, without compiling one.

For one token at each length of context, and for prompts of each size: programs, operations,
weights, surfaces, live activations and the time that the profile's figures give; what stays on
the host, and why; how many compiles that is in all."""
_MIL = """Tells what a MIL text holds: inputs, outputs, operations and weights."""
_DIFF = """Compares what two MIL texts mean.

Names, the order of lines, dialects and spellings do not count. Weight files that lie beside a
text, at the paths that it names, are compared too. The exit code is 1 where they differ."""
_CACHE = """Lists what is compiled for the Neural Engine, or drops it."""
_EXPORT = """Writes a model's programs as a Core ML package, which needs no private interface.

Each program of each step is a function of the package; equal weights are stored once. It needs
coremltools: pip install 'umbel-plugin-ane[coreml]'."""
_ADAPTER = """Makes a GGUF adapter of a folder of Orion's, for a model.

The folder has config.txt and layerN/lora_{q,k,v,o}_{A,B}.bin."""
_REPORT = """Tries out what this Neural Engine does, and writes a text to send.

Some two dozen tiny programs are compiled; the text names no user, no path and no serial
number."""


def add(cli: Any) -> None:
    """The sub-commands."""
    parser = cli.add_parser("ane", help=HELP.rstrip("."), description=HELP, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)

    def command(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
        summary = text.partition("\n")[0].rstrip(".")
        made = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
        made.add_argument("--debug", action="store_true", help="show where errors come from")
        made.set_defaults(run=run)
        return made

    from umbel.cli.common import numbers

    explain = command("explain", _EXPLAIN, run_explain)
    _model(explain)
    what = "only what prompts of so many tokens take; 1 is decode (N,N,...)"
    explain.add_argument("--prompts", metavar="N", type=numbers, default=[], help=what)
    explain.add_argument("--json", action="store_true", help="write JSON")
    mil = command("mil", _MIL, run_mil)
    mil.add_argument("file", metavar="FILE", type=Path, help="a MIL text")
    diff = command("diff", _DIFF, run_diff)
    for name in "ab":
        diff.add_argument(name, metavar=name.upper(), type=Path, help="a MIL text")
    cache = command("cache", _CACHE, run_cache)
    cache.add_argument("what", choices=("list", "clear"), help="list it, or drop all of it")
    export = command("export", _EXPORT, run_export)
    _model(export)
    to = "the package to write: NAME.mlpackage"
    export.add_argument("--to", metavar="FILE", type=Path, required=True, help=to)
    adapter = command("adapter", _ADAPTER, run_adapter)
    adapter.add_argument("folder", metavar="FOLDER", type=Path, help="the adapter of Orion's")
    adapter.add_argument("model", metavar="MODEL", type=Path, help="the GGUF file it is for")
    to = "the GGUF file to write"
    adapter.add_argument("--to", metavar="FILE", type=Path, required=True, help=to)
    report = command("report", _REPORT, run_report)
    kinds = ("auto", "private", "coreml")
    report.add_argument("--driver", choices=kinds, default="auto", help="the way there (auto)")


def _model(parser: Any) -> None:
    from umbel.cli import common

    parser.add_argument("model", metavar="MODEL", help=common.MODEL)
    common.add_load(parser)
    parser.set_defaults(device="ane:0", demo=False)


def _loaded(args: argparse.Namespace) -> tuple[Any, Any]:
    """The model, loaded without a compile, and the open device."""
    from umbel import plugins
    from umbel.cli import common

    from umbel_ane import _open

    found, name = plugins.get(), args.device.partition(",")[0]
    device = found.find(name)
    if device.backend != "ane":
        msg = "this is no Neural Engine"
        raise OptionError(msg, where="--device", expected="ane:0", got=args.device)
    found.open(device, plugins.parse_options(args.option))
    opened = _open[device.name]
    opened.splits.planning = True
    return common.load(args), opened


def run_explain(args: argparse.Namespace) -> int:
    from umbel.cli import common

    from umbel_ane import explain

    if min(args.prompts, default=1) < 1:
        msg = "a prompt has one token or more"
        raise OptionError(msg, where="--prompts", expected="N > 0", got=min(args.prompts))
    model, opened = _loaded(args)
    with model:
        found = []
        for step in explain.steps(model, opened, "ane", args.prompts):
            found.append(step)
            if not args.json:
                _show(step)
        total = explain.total(model, found, opened.driver.profile.compile_limit)
    if args.json:
        steps = [explain.told(step) for step in found]
        common.show_json({"steps": steps, "total": attrs.asdict(total)})
    else:
        print(*total.lines(), sep="\n")
    return 0


def _show(step: Any) -> None:
    from umbel.cli import common

    from umbel_ane import explain

    print(f"{step.title}: {common.counted(len(step.programs), 'program')}, {step.ms:.2f} ms")
    common.show_table(("", *row) for row in explain.rows(step))
    rows = [("", f"{n} {node}", at, why) for (node, at, why), n in step.elsewhere.items()]
    if rows:
        common.show_table(rows)
    for choice in step.choices:
        print(f"  {choice}")
    print()


def run_mil(args: argparse.Namespace) -> int:
    from umbel_ane.mil.text import summary

    print(summary(_program(args.file)))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    from umbel_ane.mil.diff import differences

    programs = [_program(path) for path in (args.a, args.b)]
    readers = [_reader(path, p) for path, p in zip((args.a, args.b), programs, strict=True)]
    found = differences(*programs, *readers)
    for one in found:
        print(one)
    if not found:
        beside = "" if all(readers) else " (weight files were not compared)"
        print(f"they mean the same{beside}")
    return 1 if found else 0


def _program(path: Path) -> Any:
    from umbel_ane.mil.parse import parse
    from umbel_ane.mil.tokens import MilError

    try:
        return parse(_bytes(path))
    except MilError as error:
        error.where = f"{path}, {error.where}"
        raise


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        msg = "the file cannot be read"
        raise OptionError(msg, where=path, got=error.strerror) from error


def _reader(path: Path, program: Any) -> Any:
    """What reads the weights of a program whose files all lie beside its text; else None."""
    from umbel_ane.mil.blob import BlobError, reader
    from umbel_ane.mil.text import weight_paths

    names = weight_paths(program)
    files = {name: path.parent / name.removeprefix("@model_path/") for name in names}
    if not all(file.is_file() for file in files.values()):
        return None
    try:
        return reader({name: _bytes(file) for name, file in files.items()})
    except BlobError as error:
        error.where = f"a weight file of {path}: {error.where or ''}".rstrip(": ")
        raise


def run_cache(args: argparse.Namespace) -> int:
    from umbel.cli.common import counted

    from umbel_ane.drivers.choose import driver

    opened = driver()
    try:
        if args.what == "clear":
            print(f"{counted(opened.clear(), 'program')} dropped")
        else:
            found = opened.cached()
            for name in found:
                print(name)
            if not found:
                print("nothing is compiled")
    finally:
        opened.close()
    return 0


def run_export(args: argparse.Namespace) -> int:
    from umbel.cli.common import counted

    from umbel_ane import explain
    from umbel_ane.coreml import tools
    from umbel_ane.coreml.export import Source, checked, export_all

    tools(), checked(args.to)  # before a model is loaded for nothing
    model, opened = _loaded(args)
    with model:
        sources = {}
        for step in explain.steps(model, opened, "ane"):
            for i, program in enumerate(step.programs):
                name = f"{step.title.replace(' ', '_')}_{i}"
                sources[name] = Source(program.emitted.program, program.weights)
        export_all(sources, args.to)
    print(f"{args.to}: {counted(len(sources), 'function')}")
    return 0


def run_adapter(args: argparse.Namespace) -> int:
    from umbel.cli.common import counted, replaceable

    from umbel_ane.adapters import convert

    n = convert(args.folder, args.model, replaceable(b"GGUF")(str(args.to)))
    print(f"{args.to}: {counted(n, 'weight')} adapted")
    return 0


def run_report(args: argparse.Namespace) -> int:
    from umbel_ane.report import report

    for line in report(args.driver):
        print(line, flush=True)
    return 0
