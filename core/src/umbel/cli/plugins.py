"""`umbel plugins`: the backends that are installed, what failed and why, and their options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from umbel.cli import common

if TYPE_CHECKING:
    from umbel.hookspecs import Option


def add(commands: common.Commands) -> None:
    common.command(commands, run, "plugins")


def _help(option: Option) -> str:
    default = "" if option.default is None else f" ({option.default})"
    return option.help + default


def run(args: argparse.Namespace) -> int:
    """Lists the backends and their options.

    Tells where they come from, what failed and why, and what they find amiss on this machine;
    with --debug, the tracebacks of what failed.
    """
    from umbel import plugins

    found = plugins.get()
    options = [
        (f"-O {backend.name}.{option.name}=", _help(option))
        for backend, offered in found.ask("options")
        for option in offered
    ]
    findings = [(backend.name, text) for backend, told in found.ask("doctor") for text in told]
    common.show_table(
        (r.name, r.state, f"{r.distribution} {r.version}", ", ".join(r.devices), r.reason)
        for r in found.describe()  # now that all have been asked
    )
    common.show_table(findings)
    common.show_table(options)
    for fault in found.faults if args.debug else ():
        print(f"\n{fault.source}: {fault.reason}\n{fault.detail}")
    return 0
