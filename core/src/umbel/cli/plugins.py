"""`umbel plugins`: the backends that are installed, what failed and why, and their options."""

from __future__ import annotations

import argparse

from umbel.cli import common

HELP = """Lists the backends and their options. Tells where they come from, what failed and why,
and what they find amiss on this machine; with --debug, the tracebacks of what failed."""


def add(commands: common.Commands) -> None:
    parser = common.command(commands, "plugins", run, HELP)
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(args: argparse.Namespace) -> int:
    import attrs

    from umbel import plugins

    found = plugins.get()
    options = [
        (f"-O {backend.name}.{o.name}=", f"{o.help} ({o.default})")
        for backend, offered in found.ask("options")
        for o in offered
    ]
    findings = [(b.name, text) for b, told in found.ask("doctor") for text in told]
    rows = found.describe()
    if args.json:
        listed = [attrs.asdict(row) for row in rows]
        common.show_json({"plugins": listed, "options": dict(options), "findings": findings})
        return 0
    common.show_table(
        (r.name, r.state, f"{r.distribution} {r.version}", ", ".join(r.devices), r.reason)
        for r in rows
    )
    for table in (findings, options):
        print(end="\n" * bool(table))
        common.show_table(table)
    for fault in found.faults if args.debug else ():
        print(f"\n{fault.source}: {fault.reason}\n{fault.detail}")
    return 0
