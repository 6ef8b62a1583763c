"""The command `umbel`: one file for each of its commands, each with `add` and `run`.

`add` gives the command's parser its options. `run` gets the parsed ones and gives the exit code
(nothing is 0); its docstring is the help of the command.

Exit codes: 0; 2 for what the user can mend (`umbel: error: ...`); 1 for a fault of Umbel's own,
and where `umbel doctor` finds an error; 130 after Ctrl-C, and 141 when nobody reads the output
any more, as shells have them.

`umbel BACKEND ...` is that plugin's own, and the only command for which plugins are loaded
before it runs: the hook `commands(cli)` adds a parser with the backend's name, whose default
`run` is a function of the parsed arguments that gives the exit code.
"""

import contextlib
import difflib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from umbel import __version__
from umbel.cli.common import Parser, log, say
from umbel.errors import OptionError, UmbelError

# The files here, in the order of the help.
COMMANDS: tuple[str, ...] = ("run", "chat", "serve", "embed", "bench", "perplexity")
COMMANDS += ("inspect", "tokenize", "convert", "quantize")
COMMANDS += ("devices", "plugins", "plan", "doctor", "completion")


class Notes(logging.Handler):
    """What the engine has to say goes to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"umbel: note: {record.getMessage()}")


NOTES = Notes(logging.WARNING)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    log.addHandler(NOTES)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if hasattr(stream, "reconfigure"):  # no text is a reason to fail
            stream.reconfigure(errors=errors)
    try:
        code = _exit_code(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk or a closed pipe may show only here
    except BaseException as error:
        if "--debug" in words:
            traceback.print_exception(error)
        code = _report(error)
    return code


def parser(names: Sequence[str] = COMMANDS) -> tuple[Parser, Any]:
    """The parser of these commands, and its sub-parsers (argparse hides their type)."""
    made = Parser(
        prog="umbel",
        description="Runs language models in GGUF files on whatever hardware is here.",
        epilog="`umbel plugins` lists the backends, and `umbel BACKEND --help` their commands.",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"umbel {__version__}")
    commands = made.add_subparsers(metavar="COMMAND", title="commands", required=True)
    for name in names:
        module = import_module(f"umbel.cli.{name}")
        text = module.run.__doc__ or ""
        summary = text.partition("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
        command.add_argument("--debug", action="store_true", help="show where errors come from")
        command.set_defaults(run=module.run)
        module.add(command)
    return made, commands


def _exit_code(words: list[str]) -> int:
    first = words[0] if words else "--help"
    made, commands = parser([first] if first in COMMANDS else COMMANDS)
    try:
        if first in commands.choices:
            # Options may stand between MODEL and TEXT, which plain `parse_args` cannot read.
            args = commands.choices[first].parse_intermixed_args(words[1:])
        else:
            if not first.startswith("-"):
                _add_backend(first, commands)
            args = made.parse_args(words or ["--help"])
        return int(args.run(args) or 0)
    except SystemExit as end:  # help, the version, or an error that argparse has told
        return end.code if isinstance(end.code, int) else 0


def _add_backend(name: str, commands: Any) -> None:
    """The commands that the backend of this name brings, if there is one."""
    from umbel import plugins

    found = plugins.get()
    found.load()
    if name in found.backends:
        found.backends[name].commands(commands)
    if name not in commands.choices:
        found.raise_fault_of(name)
        near = difflib.get_close_matches(name, commands.choices, n=1)
        do = "`umbel --help` tells what there is; more comes with plugins (`umbel plugins`)"
        msg = f"there is no command {name!r}"
        raise OptionError(msg, do=f"did you mean `umbel {near[0]}`?" if near else do)


def _report(error: BaseException) -> int:
    """Says what went wrong, in one form for everything; the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, OSError):
        # What is still buffered cannot be written; Python would try, and complain, at its end.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        error = UmbelError(error.strerror or str(error), where=error.filename)
    elif isinstance(error, MemoryError):
        error = UmbelError("there is not enough memory", do="lower --ctx, or take --kv q8_0")
    if not isinstance(error, UmbelError):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"umbel: internal error: {text}\n  do: run it again with --debug, and report that")
        return 1
    # A setting of the engine has the name of its option: `top_p` is --top-p.
    option = f"--{error.where}".replace("_", "-")
    if any(option in sub._option_string_actions for sub in parser()[1].choices.values()):
        error.where = option
    say(f"umbel: error: {error}")
    return 2
