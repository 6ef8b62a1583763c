"""`umbel devices`: what could compute here, the best one first."""

import argparse

from umbel.cli import common
from umbel.errors import UmbelError


def add(parser: common.Parser) -> None:
    """It has no options of its own."""


def run(args: argparse.Namespace) -> None:
    """Lists the devices of all backends, the best one first.

    --device takes their names, and auto is the first that is not simulated.
    """
    from umbel import plugins

    found, rows = plugins.get(), []
    for device in found.devices():
        try:
            told = found.backends[device.backend].status(device)
            status = ", ".join(f"{key} {_value(key, value)}" for key, value in told.items())
        except UmbelError as error:
            status = error.what
        rows.append((device.title, f"priority {device.priority}", device.description, status))
    common.show_table(rows)
    if found.faults:
        common.log.warning("something failed; `umbel plugins` tells what")


def _value(key: str, value: object) -> object:
    return common.mib(value) if "memory" in key and isinstance(value, int) else value
