"""The perplexity of the native engine beside the host's, with weights of every type.

    python perplexity.py [--types q4_0 q6_k ...] [--chunks 16] [--models FOLDER]
                         [--resume FILE] [--write PAGE]

For each type the demo model is written anew: every matrix in that type, or in f16 where its
rows of 576 values are no whole number of blocks; those of ffn_down have 1536. It ends with an
error where a figure is further from the host's than LIMIT. The text is the opening of
Shakespeare's Coriolanus (public domain) as it stands in tinyshakespeare: its first 8192 tokens.

What was found goes to stderr at once, the table to stdout at the end. A figure takes 20 s, or
more beside other work. With --resume all are kept in FILE, and those that are there already are
not measured again: so a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import umbel
from synthetic import make
from umbel import plugins
from umbel.errors import UmbelError
from umbel.gguf.types import BY_NAME
from umbel.tools.perplexity import estimates
from umbel.tools.quantize import mixtures, quantise

LIMIT = 0.005  # of the host's figure
CTX = 512
TEXT = Path(__file__).with_name("shakespeare.txt")
MARKS = re.compile(r"(<!-- perplexity -->\n).*?(\n<!-- end of perplexity -->)", re.DOTALL)
TYPES = (
    *("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
    *("q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4"),
    *("iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "tq2_0", "tq1_0"),
)
INNER = ("mxfp4", "nvfp4")  # no file has its embedding in them
COARSE = (
    "q2_k",
    "iq1_m",
    "iq1_s",
    "tq2_0",
    "tq1_0",
)  # a model of them alone says nothing any more
WAYS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "precise": {"options": {"numa": {"precise": True}}},
}


@attrs.frozen
class Row:
    """What was found with one type."""

    kind: str
    carried: int  # matrices of this type
    of: int  # matrices that there are
    host: float
    native: tuple[float, ...]  # by WAYS

    @property
    def off(self) -> list[float]:
        return [found / self.host - 1 for found in self.native]

    @property
    def good(self) -> bool:
        return all(abs(off) <= LIMIT for off in self.off)

    def line(self) -> str:
        far = " | ".join(f"{100 * off:+.3f} %" for off in self.off)
        return f"| {self.kind} | {self.carried} of {self.of} | {self.host:.4f} | {far} |"


def table(rows: Iterable[Row]) -> str:
    heading = f"| type | matrices | host | {' | '.join(WAYS)} |"
    return "\n".join([heading, f"|---|---|---|{'---|' * len(WAYS)}", *(r.line() for r in rows)])


@attrs.define
class Known:
    """What was found, by name; kept in a file if there is one."""

    file: Path | None = None
    found: dict[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.file and self.file.exists():
            self.found = json.loads(self.file.read_text("utf-8"))

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """That of this name, which is found if it is not known."""
        if name in self.found:
            return self.found[name]
        begin = time.monotonic()
        self.found[name] = found = find()
        seconds = time.monotonic() - begin
        print(f"{name}: {found} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        if self.file:
            self.file.write_text(json.dumps(self.found, indent=1), "utf-8")
        return found


def write(source: Path, kind: str, path: Path) -> tuple[int, int]:
    """The model in that type; how many matrices carry it, and of how many."""
    one = patch.dict(mixtures.MIXTURES, ONE=mixture(kind))
    with one, patch.dict(mixtures.FALLBACK, clear=True):  # what does not fit becomes f16
        quantise(source, path, "ONE")
    with umbel.gguf.open(path) as file:
        matrices = [t for t in file.tensors.values() if len(t.shape) > 1]
    return sum(t.dtype.name == kind for t in matrices), len(matrices)


def mixture(kind: str) -> mixtures.Mixture:
    """One type, or what the model can bear of it."""
    down = {"last 8th": kind, "all": "f16"} if kind in COARSE else {}
    output = "q8_0" if kind in INNER else kind if BY_NAME[kind].block < 256 else "f16"
    return mixtures.Mixture(0, kind, output, ffn_down=down)


def measured(path: Path, device: str, chunks: int, **given: Any) -> float:
    with umbel.load(path, device, ctx=CTX, **given) as model:
        ids = model.tokenizer.encode(TEXT.read_bytes(), eos=False)
        *_, last = estimates(model, ids, ctx=CTX, chunks=chunks)
    plugins.get().close()  # the next one may want other options
    return last.perplexity


def row(kind: str, chunks: int, threads: int, source: Path, known: Known) -> Row:
    """Of one type, whose file is written where something of it is not known."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.gguf"

        def find(device: str, **given: Any) -> float:
            if not path.exists():
                write(source, kind, path)
            return measured(path, device, chunks, threads=threads, **given)

        carried, of = known.get(f"{kind}, matrices", partial(write, source, kind, path))
        name = f"{kind}, {chunks} chunks"
        host = known.get(f"{name}, host", partial(find, "host"))
        native = [
            known.get(f"{name}, numa {way}", partial(find, "numa", **given))
            for way, given in WAYS.items()
        ]
        return Row(kind, carried, of, host, tuple(native))


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexities, the host's and the engine's.")
    add = parser.add_argument
    add("--types", nargs="+", default=list(TYPES), choices=TYPES, metavar="TYPE")
    add("--chunks", type=int, default=16, help=f"of {CTX} tokens (16)")
    add("--threads", type=int, default=0, help="0: as each chooses (0)")
    add("--models", type=Path, default=Path(tempfile.gettempdir()), help="where files go")
    add("--resume", type=Path, metavar="FILE", help="what was found, kept from run to run")
    add("--write", type=Path, metavar="PAGE", help="renew the table in this page")
    args = parser.parse_args()
    if args.write and not MARKS.search(args.write.read_text("utf-8")):
        parser.error(f"{args.write} is no page with the mark <!-- perplexity -->")
    logging.getLogger("umbel").setLevel(logging.ERROR)  # it tells of rows that do not fit
    source, known = make("smollm2-f16", args.models), Known(args.resume)
    found = [row(kind, args.chunks, args.threads, source, known) for kind in args.types]
    told = table(found)
    print(told)
    if args.write:
        page = args.write.read_text("utf-8")
        args.write.write_text(MARKS.sub(lambda m: f"{m[1]}{told}{m[2]}", page), "utf-8")
    if bad := [one.kind for one in found if not one.good]:
        sys.exit(f"further than {100 * LIMIT} % from the host: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except UmbelError as error:
        sys.exit(f"perplexity: {error}")
