"""`umbel devices`: what could compute here, the best one first."""

from __future__ import annotations

import argparse
from typing import Any

from umbel.cli import common
from umbel.errors import UmbelError

HELP = """Lists the devices of all backends, the best one first. --device takes their names, and
auto is the first that is not simulated."""


def add(commands: common.Commands) -> None:
    parser = common.command(commands, "devices", run, HELP)
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(args: argparse.Namespace) -> int:
    from umbel import plugins

    found = plugins.get()
    rows: list[dict[str, Any]] = []
    for d in found.devices():
        row: dict[str, Any] = {"name": d.name, "description": d.description}
        row |= {"priority": d.priority, "simulated": d.simulated}
        try:
            row["status"] = dict(found.owner(d).status(d))
        except UmbelError as error:
            row["status"] = {"error": error.what}
        rows.append(row)
    common.show_json(rows) if args.json else common.show_table(map(_line, rows))
    if found.faults:
        common.log.warning("something failed; `umbel plugins` tells what")
    return 0


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    name = row["name"] + " (simulated)" * row["simulated"]
    sizes = {k: v for k, v in row["status"].items() if "memory" in k and isinstance(v, int)}
    status = row["status"] | {key: common.mib(n) for key, n in sizes.items()}
    text = ", ".join(f"{key} {value}" for key, value in status.items())
    return name, f"priority {row['priority']}", row["description"], text
