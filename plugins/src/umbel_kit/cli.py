"""The command `umbel-kit`: a new plugin, and the table of what is covered."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from umbel.errors import OptionError, UmbelError

from umbel_kit import scaffold


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    parser = argparse.ArgumentParser(prog="umbel-kit", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="write a plugin that installs and passes")
    new.add_argument("name", metavar="NAME", help="of the backend: npu makes plugin-npu")
    new.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where (here)")
    new.set_defaults(run=_new)
    covers = commands.add_parser("coverage", help="what runs where, as a table in Markdown")
    text = "a device; repeatable (all that are here)"
    covers.add_argument("--device", action="append", default=[], metavar="D", help=text)
    covers.add_argument(
        "--write", type=Path, metavar="FILE", help="bring the table in FILE up to date"
    )
    covers.add_argument("--check", type=Path, metavar="FILE", help="fail where FILE is stale")
    covers.set_defaults(run=_coverage)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except UmbelError as error:
        print(f"umbel-kit: error: {error}", file=sys.stderr)
        return 2


def _new(args: argparse.Namespace) -> int:
    folder = scaffold.write(args.name, args.into)
    print(f"{folder} is a plugin; `pip install -e {folder}` and `pytest {folder}` try it")
    return 0


def _coverage(args: argparse.Namespace) -> int:
    from umbel import plugins
    from umbel.ops import OPS

    from umbel_kit.coverage import BEGIN, table

    found = plugins.get()
    names = args.device or [device.name for device in found.devices()]
    targets = [found.open(found.find(name)) for name in dict.fromkeys([*names, "host"])]
    made = table(targets, OPS)
    file = args.write or args.check
    if file is None:
        print(made)
        return 0
    text = file.read_text("utf-8")
    head, mark, _ = text.partition(BEGIN)
    if not mark:
        msg = "the page has no place for the table"
        raise OptionError(msg, where=file, expected=f"a line {BEGIN}")
    if args.write:
        file.write_text(head + made, "utf-8")
    elif head + made != text:
        msg = "the table of what runs where is stale"
        raise OptionError(msg, where=file, do=f"umbel-kit coverage --write {file}")
    return 0
