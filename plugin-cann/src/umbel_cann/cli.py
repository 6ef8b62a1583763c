"""`umbel cann probe` and `umbel cann kernels`."""

from __future__ import annotations

import argparse
from typing import Any

import attrs
from umbel.errors import OptionError
from umbel.hookspecs import Device

HELP = "Ascend NPUs on this machine: what they can do."
_PROBE = """Tries every operator on a chip again, and tells which work.

That is done at the first use of a chip with a CANN, too, and kept; here whatever is known
already is replaced. It takes some seconds. `umbel doctor --device cann` tells what is known."""
_KERNELS = """Tells which kernels other distributions have brought for a chip.

Of each its operation, its distribution, and what its operators lack, if anything. Of several
for one operation the first that takes a node computes it."""


def add(cli: Any) -> None:
    """The sub-commands."""
    parser = cli.add_parser("cann", help=HELP.rstrip("."), description=HELP, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    summary = _PROBE.partition("\n")[0].rstrip(".")
    probe = commands.add_parser("probe", help=summary, description=_PROBE, allow_abbrev=False)
    probe.add_argument("--json", action="store_true", help="write JSON")
    summary = _KERNELS.partition("\n")[0].rstrip(".")
    kernels = commands.add_parser(
        "kernels", help=summary, description=_KERNELS, allow_abbrev=False
    )
    for parser, run in ((probe, run_probe), (kernels, run_kernels)):
        parser.add_argument("--device", default="cann:0", metavar="D", help="which (cann:0)")
        parser.add_argument("--debug", action="store_true", help="show where errors come from")
        parser.set_defaults(run=run)


def _device(name: str) -> Device:
    from umbel import plugins

    device = plugins.get().find(name)
    if device.backend != "cann":
        msg = "this is no Ascend NPU"
        raise OptionError(msg, where="--device", expected="cann:0, ...", got=name)
    return device


def run_probe(args: argparse.Namespace) -> int:
    from umbel.cli import common

    from umbel_cann.acl.toolkit import required
    from umbel_cann.probing import cache, report

    device = _device(args.device)
    common.say_progress("trying")
    found = cache.fresh(required(device.name), device.index)
    if args.json:
        common.show_json(attrs.asdict(found))
        return 0
    common.show_table(report.table(found))
    title = f"{found.soc} (simulated)" if device.simulated else found.soc
    print(f"\n{title}, CANN {found.cann}: {found.told}")
    return 0


def run_kernels(args: argparse.Namespace) -> int:
    from umbel import plugins
    from umbel.cli import common

    from umbel_cann import _open

    device = _device(args.device)
    plugins.get().open(device)
    opened = _open[device.name]
    rows = []
    for one in opened.brought.every:
        reasons = map(opened.npu.acl.missing, one.kernel.operators)
        rows.append((one.operation, one.origin, next(filter(None, reasons), "ready")))
    if rows:
        common.show_table(rows)
    else:
        print("none")
    return 0
