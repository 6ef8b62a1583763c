"""`umbel doctor [MODEL]`: what is in the way on this machine, and what to do about it."""

import argparse

import umbel
from umbel.cli import common
from umbel.errors import UmbelError


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a GGUF file that is here, or demo")
    add("--ctx", type=int, metavar="N", help="is there memory for N tokens? (up to 4096)")
    add("--kv", **common.KV)
    text = "what is to run it (auto); of the others' plugins nothing is told then"
    add("--device", default="auto", metavar="D[,D]", help=text)
    add("--json", action="store_true", help="write JSON")


def run(args: argparse.Namespace) -> int:
    """Looks for what keeps Umbel from working here, and says what to do.

    With MODEL also: can it be opened, and is there memory for it? Nothing is downloaded. The
    exit code is 1 where something is an error, else 0. With --debug come the tracebacks of
    plugins.
    """
    try:
        from umbel import plugins
        from umbel.tools import doctor
    except ImportError as error:
        msg, do = "a library is broken", "pip install --force-reinstall numpy attrs pluggy gguf"
        raise UmbelError(msg, got=error, do=do) from error
    if args.model is not None:
        common.say_progress("looking")
    rows = doctor.examine(args.model, device=args.device, ctx=args.ctx, kv=args.kv)
    if args.json:
        found = [
            {"topic": topic, "level": f.level, "what": f.what, "do": f.do} for topic, f in rows
        ]
        common.show_json({"version": umbel.__version__, "findings": found})
    else:
        common.show_table((f.level, topic, f.what) for topic, f in rows)
        todo = [(topic, f.do or f.what) for topic, f in rows if f.level in ("warning", "error")]
        print("\nTo do:" if todo else "\nNothing to do.")
        for topic, text in todo:
            print(f"* {topic}: {text}")
    for fault in plugins.get().faults if args.debug else ():
        common.say(f"\n{fault.source}: {fault.reason}\n{fault.detail}")
    return int(any(f.level == "error" for _, f in rows))
