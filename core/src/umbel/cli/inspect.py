"""`umbel inspect MODEL`: what stands in a GGUF file, also in one that cannot be run here."""

import argparse
import math
from collections import Counter
from typing import Any

from umbel.cli import common

LONG = 100  # characters of a value


def add(parser: common.Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=common.MODEL)
    parser.add_argument("--tensors", action="store_true", help="list the tensors")
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(args: argparse.Namespace) -> None:
    """Shows the metadata of a GGUF file, and with --tensors every tensor.

    Long values are cut short; --json writes all of them in full.
    """
    from umbel import gguf

    with gguf.open(common.find(args)) as file:
        tensors = file.tensors.values() if args.tensors else ()
        types = Counter(t.dtype.name for t in file.tensors.values())
        facts: dict[str, Any] = {"file": str(file.path), "size": file.size}
        facts |= {"version": file.version, "alignment": file.alignment, "types": dict(types)}
        facts["parameters"] = sum(math.prod(t.shape) for t in file.tensors.values())
        if args.json:
            rows = [{"name": t.name, "type": t.dtype.name, "shape": t.shape} for t in tensors]
            common.show_json({**facts, "metadata": dict(file.metadata), "tensors": rows})
        else:
            facts |= file.metadata
            common.show_table((key, _short(value)) for key, value in facts.items())
            common.show_table((t.dtype, t.nbytes, t.shape, _short(t.name)) for t in tensors)


def _short(value: object) -> str:
    """A value on one line; `repr` escapes what a terminal would take for a command."""
    if isinstance(value, list) and len(value) > 6:
        return f"{_short(value[:6])[:-1]}, ...] ({len(value)} values)"
    text = repr(value)
    return text if len(text) <= LONG else f"{text[:LONG]} ... ({len(text)} characters)"
