"""`umbel completion SHELL`: the script that lets a shell complete commands, options and files.

It is written by shtab (the extra [completion]) from the parsers, and costs nothing until a key
is pressed: of Umbel itself only the names of devices are asked then.
"""

import argparse
import contextlib
import importlib
import sys
from typing import Any

from umbel.cli import common
from umbel.errors import UmbelError

SHELLS = ("bash", "zsh", "fish")
DEVICES = "echo auto; umbel devices 2>/dev/null | sed 's/ .*//; s/:0//'"


def add(parser: common.Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="yours: echo $SHELL tells")


def run(args: argparse.Namespace) -> None:
    """Prints a script that makes the Tab key complete `umbel`.

    `eval "$(umbel completion bash)"` tries it out, in zsh likewise, in fish `umbel completion
    fish | source`.
    """
    from umbel import cli, plugins

    try:
        shtab: Any = importlib.import_module("shtab")
    except ImportError as error:
        msg, do = "this needs the extra [completion]", "pip install 'umbel-core[completion]'"
        raise UmbelError(msg, got=error, do=do) from error
    parser, commands = cli.parser()
    with contextlib.redirect_stdout(sys.stderr):
        plugins.get().ask("commands", commands)  # `umbel BACKEND ...`
    kinds = _kinds(shtab)
    for command in commands.choices.values():
        command.description = (command.description or "").partition("\n")[0]
        for action in command._actions:
            if action.metavar in kinds:
                action.complete = kinds[action.metavar]
    print(shtab.complete(parser, args.shell))


def _kinds(shtab: Any) -> dict[str, Any]:
    """How an argument is completed, by the name that the help gives it."""
    models, files, devices = shtab.glob("*.gguf"), shtab.FILE, shtab.cmd(DEVICES)
    models["zsh"] = "_files -g '*.gguf'"  # with the parentheses of shtab zsh 5.9 finds nothing
    # In a function, since zsh would else ask for them as often as it reads the script.
    devices["zsh"] = "_umbel_devices"
    devices["preamble"]["zsh"] = f'_umbel_devices() {{ compadd -- ${{(f)"$({DEVICES})"}} }}'
    kinds = {"MODEL": models, "FILE": files, "DIR": shtab.DIRECTORY, "D[,D]": devices}
    return kinds | {"IN": models, "OUT": files}
