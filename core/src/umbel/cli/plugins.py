"""`umbel plugins`: the backends that are installed, what failed and why, and their options."""

import argparse

from umbel.cli import common


def add(parser: common.Parser) -> None:
    """It has no options of its own."""


def run(args: argparse.Namespace) -> None:
    """Lists the backends and their options.

    Tells where they come from, and what failed and why; with --debug, its tracebacks.
    """
    from umbel import plugins

    found = plugins.get()
    options = []
    for backend, offered in found.ask("options"):
        for option in offered:
            default = "" if option.default is None else f" ({option.default})"
            options.append((f"-O {backend.name}.{option.name}=", option.help + default))
    common.show_table(
        (source.name, "FAILED" if reason else "ok", source, ", ".join(devices), reason)
        for source, reason, devices in found.describe()  # now that all have been asked
    )
    common.show_table(options)
    for fault in found.faults if args.debug else ():
        print(f"\n{fault.source}: {fault.reason}\n{fault.detail}")
