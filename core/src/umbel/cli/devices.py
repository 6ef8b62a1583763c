"""`umbel devices`: what could compute here, the best one first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from umbel.cli import common
from umbel.errors import UmbelError

if TYPE_CHECKING:
    from umbel.hookspecs import Device
    from umbel.plugins import Plugins


def add(commands: common.Commands) -> None:
    common.command(commands, run, "devices")


def run(args: argparse.Namespace) -> int:
    """Lists the devices of all backends, the best one first.

    --device takes their names, and auto is the first that is not simulated.
    """
    from umbel import plugins

    found = plugins.get()
    common.show_table(
        (common.device_name(d), f"priority {d.priority}", d.description, _status(found, d))
        for d in found.devices()
    )
    if found.faults:
        common.log.warning("something failed; `umbel plugins` tells what")
    return 0


def _status(found: Plugins, device: Device) -> str:
    try:
        told = found.owner(device).status(device)
    except UmbelError as error:
        return error.what
    sizes = {k: common.mib(v) for k, v in told.items() if "memory" in k and isinstance(v, int)}
    return ", ".join(f"{key} {value}" for key, value in (dict(told) | sizes).items())
