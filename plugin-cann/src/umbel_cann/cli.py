"""`umbel cann probe`."""

from __future__ import annotations

import argparse
from typing import Any

import attrs
from umbel.errors import OptionError

HELP = "Ascend NPUs on this machine: what they can do."
_PROBE = """Tries every operator on a chip again, and tells which work.

That is done at the first use of a chip with a CANN, too, and kept; here whatever is known
already is replaced. It takes some seconds. `umbel doctor --device cann` tells what is known."""


def add(cli: Any) -> None:
    """The sub-commands."""
    parser = cli.add_parser("cann", help=HELP.rstrip("."), description=HELP, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    summary = _PROBE.partition("\n")[0].rstrip(".")
    probe = commands.add_parser("probe", help=summary, description=_PROBE, allow_abbrev=False)
    probe.add_argument("--device", default="cann:0", metavar="D", help="which chip (cann:0)")
    probe.add_argument("--json", action="store_true", help="write JSON")
    probe.add_argument("--debug", action="store_true", help="show where errors come from")
    probe.set_defaults(run=run_probe)


def run_probe(args: argparse.Namespace) -> int:
    from umbel import plugins
    from umbel.cli import common

    from umbel_cann.acl.toolkit import required
    from umbel_cann.probing import cache, report

    device = plugins.get().find(args.device)
    if device.backend != "cann":
        msg = "this is no Ascend NPU"
        raise OptionError(msg, where="--device", expected="cann:0, ...", got=args.device)
    common.say_progress("trying")
    found = cache.fresh(required(device.name), device.index)
    if args.json:
        common.show_json(attrs.asdict(found))
        return 0
    common.show_table(report.table(found))
    title = f"{found.soc} (simulated)" if device.simulated else found.soc
    print(f"\n{title}, CANN {found.cann}: {found.told}")
    return 0
