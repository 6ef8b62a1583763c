"""The command `umbel-kit`: a new plugin, and the table of what is covered."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from umbel.errors import OptionError, UmbelError

from umbel_kit import scaffold

if TYPE_CHECKING:
    from umbel_kit.cases import Case


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code: 0, or 2 for what the user can mend."""
    try:
        args = parser().parse_args(argv)
        return int(args.run(args))
    except UmbelError as error:
        print(f"umbel-kit: error: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="umbel-kit", description=__doc__, allow_abbrev=False)
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="write a plugin that installs and passes its tests")
    new.add_argument("name", metavar="NAME", help="of the backend: npu makes plugin-npu")
    new.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where (here)")
    new.set_defaults(run=_new)
    covers = commands.add_parser("coverage", help="what runs where, as a table in Markdown")
    text = "a device, as `umbel devices` names it; repeatable (all that are here)"
    covers.add_argument("--device", action="append", default=[], metavar="D", help=text)
    text = "a module with cases for operations of your own, as for the suite; repeatable"
    covers.add_argument("--cases", action="append", default=[], metavar="MODULE", help=text)
    place = covers.add_mutually_exclusive_group()
    text = "bring the table in FILE up to date"
    place.add_argument("--write", type=Path, metavar="FILE", help=text)
    text = "fail where the table in FILE is stale"
    place.add_argument("--check", type=Path, metavar="FILE", help=text)
    covers.set_defaults(run=_coverage)
    return made


def _new(args: argparse.Namespace) -> int:
    folder = scaffold.write(args.name, args.into)
    where = shlex.quote(str(folder))
    print(f"{folder} is a plugin; its README.md says how to go on. To see it pass:")
    print(f"    pip install -e {where} && pytest {where}")
    return 0


def _coverage(args: argparse.Namespace) -> int:
    file = args.write or args.check
    before = _read(file) if file else ""  # first: the table takes seconds
    made = _table(args.device, args.cases)
    if file is None:
        print(made, end="")
        return 0
    from umbel_kit.coverage import BEGIN

    head, mark, after = before.rpartition(BEGIN)
    if not mark:
        msg = "the page has no place for the table"
        do = "put that line where the table shall stand; all below it is replaced"
        raise OptionError(msg, where=file, expected=f"a line {BEGIN}", do=do)
    if mark + after == made:
        print(f"{file} is up to date")
    elif args.check:
        msg = "the table of what runs where is stale"
        got, expected = _change(mark + after, made)
        raise OptionError(msg, where=file, expected=expected, got=got, do=_renewal(args))
    else:
        _write(file, head + made)
        print(f"{file} is renewed")
    return 0


def _table(names: Sequence[str], modules: Iterable[str]) -> str:
    from umbel import plugins
    from umbel.ops import OPS

    from umbel_kit.cases import CASES
    from umbel_kit.coverage import table

    found = plugins.get()
    devices = [found.find(name) for name in names] if names else found.devices()
    brought = {op.name: op for _, ops in found.ask("ops") for op in ops}
    of = [*CASES, *(case for name in modules for case in _cases(name))]
    return table(
        [found.open(device) for device in dict.fromkeys(devices)], {**brought, **OPS}, of
    )


def _cases(module: str) -> Sequence[Case]:
    try:
        cases: Sequence[Case] = import_module(module).CASES
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"there are no cases in {module}"
        expected = "a module with a list CASES of umbel_kit.cases.Case"
        raise OptionError(msg, where="--cases", expected=expected, got=error) from error
    return cases


def _change(before: str, now: str) -> tuple[str, str]:
    """The first line that is not as it should be, and as it should be."""
    pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
    return next(((a, b) for a, b in pairs if a != b), ("another end", "a line's end"))


def _renewal(args: argparse.Namespace) -> str:
    words = [word for name in args.device for word in ("--device", name)]
    words += [word for name in args.cases for word in ("--cases", name)]
    return shlex.join(["umbel-kit", "coverage", *words, "--write", str(args.check)])


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = "the page cannot be read"
        got = error.strerror if isinstance(error, OSError) else error
        raise OptionError(msg, where=file, got=got) from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        msg = "the page cannot be written"
        raise OptionError(msg, where=file, got=error.strerror) from error
