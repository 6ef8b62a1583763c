"""The perplexity of the native engine beside the host's, with weights of every type.

    python perplexity.py [--types q4_0 q6_k ...] [--chunks 16] [--models FOLDER] [--write PAGE]

For each type the demo model is written anew: every matrix in that type, or in f16 where its
rows of 576 values are no whole number of blocks; those of ffn_down have 1536. It ends with an
error where a figure is further from the host's than LIMIT. The text is the opening of
Shakespeare's Coriolanus (public domain) as it stands in tinyshakespeare: its first 8192 tokens.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
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


def heading() -> str:
    ways = " | ".join(WAYS)
    return f"| type | matrices | host | {ways} |\n|---|---|---|{'---|' * len(WAYS)}"


def written(source: Path, kind: str, folder: Path) -> tuple[Path, int, int]:
    """The model in that type; how many matrices carry it, and of how many."""
    path = folder / f"{kind}.gguf"
    one = patch.dict(mixtures.MIXTURES, ONE=mixture(kind))
    with one, patch.dict(mixtures.FALLBACK, clear=True):  # what does not fit becomes f16
        quantise(source, path, "ONE")
    with umbel.gguf.open(path) as file:
        matrices = [t for t in file.tensors.values() if len(t.shape) > 1]
    return path, sum(t.dtype.name == kind for t in matrices), len(matrices)


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


def rows(types: list[str], chunks: int, threads: int, source: Path) -> Iterator[Row]:
    run = {"chunks": chunks, "threads": threads}
    for kind in types:
        with tempfile.TemporaryDirectory() as folder:
            path, carried, of = written(source, kind, Path(folder))
            host = measured(path, "host", **run)
            native = [measured(path, "numa", **run, **given) for given in WAYS.values()]
        yield Row(kind, carried, of, host, tuple(native))


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexities, the host's and the engine's.")
    add = parser.add_argument
    add("--types", nargs="+", default=list(TYPES), choices=TYPES, metavar="TYPE")
    add("--chunks", type=int, default=16, help=f"of {CTX} tokens (16)")
    add("--threads", type=int, default=0, help="0: as each chooses (0)")
    add("--models", type=Path, default=Path(tempfile.gettempdir()), help="where files go")
    add("--write", type=Path, metavar="PAGE", help="renew the table in this page")
    args = parser.parse_args()
    if args.write and not MARKS.search(args.write.read_text("utf-8")):
        parser.error(f"{args.write} is no page with the mark <!-- perplexity -->")
    logging.getLogger("umbel").setLevel(logging.ERROR)  # it tells of rows that do not fit
    print(heading(), flush=True)
    found = []
    for row in rows(args.types, args.chunks, args.threads, make("smollm2-f16", args.models)):
        print(row.line(), flush=True)
        found.append(row)
    if args.write:
        told = "\n".join([heading(), *(row.line() for row in found)])
        page = args.write.read_text("utf-8")
        args.write.write_text(MARKS.sub(lambda m: f"{m[1]}\n{told}\n{m[2]}", page), "utf-8")
    if bad := [row.kind for row in found if not row.good]:
        sys.exit(f"further than {100 * LIMIT} % from the host: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except UmbelError as error:
        sys.exit(f"perplexity: {error}")
